"""A search index on disk: the newest rows by key, found by their words, and never half of a batch."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.errors import Misuse
from headrace.folders import LocalFolder
from headrace.sinks.search import NoSuchIndex, SearchIndex, SearchSink, search, search_index
from headrace.sinks.sink import (
    IncompatibleTarget,
    RowsRejected,
    Sink,
    SinkContext,
    TargetUnavailable,
    WriterFenced,
)
from headrace.sinks.staging import StagedBatch
from headrace.testing.sinks import SinkContract
from headrace.testing.sinks import rows as sold
from tests.sinks import search_writer, writing

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.string(),
        "city": pa.string(),
        "price": pa.float64(),
        "at": pa.timestamp("us", "UTC"),
        "_deleted": pa.bool_(),
    }
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PRODUCTS = search("products", key="id", text=["name"])
TEA = {"id": 1, "name": "Green tea", "city": "Oslo", "price": 3.5, "at": NOON}
CUP = {"id": 2, "name": "Tea cup", "city": "New York", "price": 8.0, "at": NOON}


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(
        job="my.shop.products",
        generation=1,
        schema=SCHEMA,
        folder=LocalFolder(tmp_path / "own"),
        state=tmp_path,
    )


def write(context: SinkContext, batch: int, *rows: dict[str, Any], sink: SearchSink = PRODUCTS) -> None:
    table = pa.Table.from_pylist([{"_deleted": False, **row} for row in rows], context.schema)
    assert writing.write(sink, context, batch, table) == batch


class TestTheContract(SinkContract):
    deletes = True

    def sink(self) -> Sink:
        return search("sales", key="product", path=str(self.folder / "sales"))

    def read(self) -> list[dict[str, Any]]:
        return [hit.row for hit in SearchIndex(self.folder / "sales").find("*", limit=1_000_000)]

    def test_jobs_have_separate_markers(self) -> None:
        """One after the other: an index has one writer at a time."""
        with self._opened() as one:
            one.commit(7, StagedBatch.of(sold(("tea", 1.0))))
        with self._opened(job="shop.other") as other:
            assert other.last_batch() is None
            other.commit(0, StagedBatch.of(sold(("cup", 2.0))))
        with self._opened() as one:
            assert one.last_batch() == 7
        assert self._held() == [("cup", 2.0), ("tea", 1.0)]


def found(tmp_path: Path, query: str) -> list[int]:
    return sorted(hit.row["id"] for hit in search_index("products", state=str(tmp_path)).find(query))


def test_rows_are_found_by_words_and_columns(tmp_path: Path, context: SinkContext) -> None:
    write(context, 0, TEA, CUP)
    answers = {
        "tea": [1, 2],
        "tea AND cup": [2],
        '"tea cup"': [2],
        "tea -cup": [1],
        'city:"New York"': [2],
        "city:york": [],  # not one of the texts: it is found as a whole
        "price:[3 TO 5]": [1],
        "at:[2026-01-01T00:00:00Z TO 2026-01-02T00:00:00Z]": [1, 2],
        "*": [1, 2],
    }
    assert {query: found(tmp_path, query) for query in answers} == answers
    (best, second) = search_index("products", state=str(tmp_path)).find("cup tea")
    assert best.score > second.score
    assert best.row == CUP | {"at": "2026-01-01T12:00:00.000000Z"}


def test_the_english_analyzer_stems_words(tmp_path: Path, context: SinkContext) -> None:
    write(context, 0, CUP, sink=search("products", key="id", text=["name"], analyzer="english"))
    assert found(tmp_path, "cups") == [2]


def test_a_row_replaces_the_row_with_its_key_and_deletes_remove_it(
    tmp_path: Path, context: SinkContext
) -> None:
    write(context, 0, TEA, TEA | {"name": "Black tea"}, CUP)
    reader = search_index("products", state=str(tmp_path))
    assert [hit.row["name"] for hit in reader.find("name:tea AND city:Oslo")] == ["Black tea"]
    write(context, 1, TEA | {"name": "Coffee"}, CUP | {"_deleted": True})
    assert [hit.row["name"] for hit in reader.find("*")] == ["Coffee"]
    assert reader.count() == 1


def test_a_repeated_batch_changes_nothing(tmp_path: Path, context: SinkContext) -> None:
    write(context, 3, TEA)
    write(context, 3, CUP)
    assert found(tmp_path, "*") == [1]


def test_a_new_generation_starts_over_and_fences_the_old_one(tmp_path: Path, context: SinkContext) -> None:
    write(context, 3, TEA)
    write(replace(context, generation=2), 0, CUP)
    with pytest.raises(WriterFenced, match="later run"):
        write(context, 4, TEA)
    assert found(tmp_path, "*") == [1, 2]


def test_only_one_process_writes_an_index(context: SinkContext) -> None:
    target = PRODUCTS.open(context)
    with pytest.raises(TargetUnavailable, match="another process"):
        PRODUCTS.open(context)
    target.close()
    PRODUCTS.open(context).close()


def test_rows_without_a_key_are_rejected_and_nothing_is_written(tmp_path: Path, context: SinkContext) -> None:
    with pytest.raises(RowsRejected) as refused:
        write(context, 0, TEA, TEA, CUP | {"id": None})
    assert refused.value.rows == {2: "id is null"}
    by_name = search("products", key="name")
    with pytest.raises(RowsRejected, match="longer than"):
        write(context, 0, TEA | {"name": "x" * 70_000}, sink=replace(by_name, path=tmp_path / "other"))
    assert found(tmp_path, "*") == []


def test_an_index_of_other_columns_is_not_changed(context: SinkContext) -> None:
    write(context, 0, TEA)
    with pytest.raises(IncompatibleTarget, match=r"headrace job reset my\.shop\.products"):
        search("products", key="name", text=["name"]).open(context)


@pytest.mark.parametrize(
    ("sink", "complaint"),
    [
        (search("products", key="nr"), "needs nr"),
        (search("products", key="id", text=["price"]), "no text columns in price"),
    ],
)
def test_invalid_columns_are_named(context: SinkContext, sink: SearchSink, complaint: str) -> None:
    with pytest.raises(IncompatibleTarget, match=complaint):
        sink.open(context)


@pytest.mark.parametrize("query", ["(((", "nothing:tea", "price:[a TO b]"])
def test_an_invalid_query_is_explained(tmp_path: Path, context: SinkContext, query: str) -> None:
    write(context, 0, TEA)
    with pytest.raises(Misuse, match=r"is not a valid query.*name, city, price"):
        found(tmp_path, query)


def test_the_error_for_a_missing_index_lists_the_existing_ones(tmp_path: Path, context: SinkContext) -> None:
    write(context, 0, TEA)
    with pytest.raises(NoSuchIndex, match=r"existing: products"):
        search_index("tea", state=str(tmp_path))


def test_the_command_prints_the_matches(tmp_path: Path, context: SinkContext) -> None:
    write(context, 0, TEA, CUP)
    run = CliRunner().invoke(app, ["search", "products", "cup", "--state", str(tmp_path)])
    score, *row = run.stdout.splitlines()[1].split()
    assert float(score) > 0
    assert row == ["2", "Tea", "cup", "New", "York", "8.0", "2026-01-01T12:00:00.000000Z"]
    run = CliRunner().invoke(
        app, ["search", "products", "tea", "--json", "--limit", "1", "--state", str(tmp_path)]
    )
    assert [hit["row"]["name"] for hit in json.loads(run.stdout)] in (["Green tea"], ["Tea cup"])
    assert "the best 1 of 2 rows" in run.stderr
    run = CliRunner().invoke(app, ["search", "cups", "tea", "--state", str(tmp_path)])
    assert (run.exit_code, "existing: products" in run.stderr) == (1, True)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Any]:
    """A function that starts the process that writes; it ends with the test at the latest."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", search_writer.__name__, str(tmp_path)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_kill_during_a_batch_leaves_a_complete_batch(tmp_path: Path, writer: Any) -> None:
    last = -1
    for lines in (1, 3, 7):
        process = writer()
        for _ in range(lines):
            last = int(process.stdout.readline())
        process.kill()
        process.wait()
        index = SearchIndex(tmp_path / "search/numbers")
        batches = {hit.row["batch"] for hit in index.find("*", limit=search_writer.ROWS + 1)}
        assert index.count() == search_writer.ROWS
        target = search_writer.SINK.open(search_writer.context(tmp_path))
        assert batches == {target.last_batch()}
        assert target.last_batch() >= last  # what was said to be done is there
        target.close()


BATCHES = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["tea", "cup", "pot"]), st.booleans()), max_size=6),
    max_size=4,
)


@settings(max_examples=20)
@given(batches=BATCHES)
def test_the_index_has_the_latest_rows_after_random_batches(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, str, bool]]]
) -> None:
    path = tmp_path_factory.mktemp("model")
    context = SinkContext(job="a.b", generation=1, schema=SCHEMA, folder=LocalFolder(path), state=path)
    expected: dict[int, str] = {}
    for number, batch in enumerate(batches):
        write(context, number, *({"id": key, "name": name, "_deleted": gone} for key, name, gone in batch))
        for key, name, gone in batch:
            expected.pop(key, None)
            expected |= {} if gone else {key: name}
    if batches:
        index = SearchIndex(path / "search/products")
        assert {hit.row["id"]: hit.row["name"] for hit in index.find("*")} == expected
        assert index.count("tea") == list(expected.values()).count("tea")
