"""Files as an output, read back by Spark, DuckDB and Polars: committed rows, each of them once."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from headrace import files
from headrace.errors import Misuse
from headrace.sinks import files as files_module
from headrace.sinks.files import LocalFileStore, StagedFileLost
from headrace.sinks.sink import IncompatibleTarget, Sink, SinkContext, TargetUnavailable, WriterFenced
from headrace.sinks.staging import StagedBatch
from headrace.testing.sinks import SinkContract, stage
from tools.s3_server import PROGRAM, S3Server

Contexts = Callable[..., SinkContext]
ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), None, date(2026, 1, 1)]),
        "shop": ["a/b c", "x", "x", "a/b c"],
        "amount": [1.5, None, 3.0, 4.0],
    }
)
ROWS = sorted(ORDERS.to_pylist(), key=lambda row: row["id"])


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    if not PROGRAM.exists():
        pytest.fail("there is no S3 server: run make test-s3")
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the files of a test go."""
    if request.param == "folder":
        return str(tmp_path / "lake" / "orders")
    server: S3Server = request.getfixturevalue("s3_server")
    return f"{server.url}/{tmp_path.name}/orders"


def committed(sink: Sink, context: SinkContext, batch: int, staged: StagedBatch) -> None:
    with closing(sink.open(context)) as writer:
        writer.commit(batch, staged)
        assert writer.last_batch() == batch


def read_by_duckdb(place: str) -> list[dict[str, Any]]:
    rows = duckdb.sql(f"SELECT * FROM read_parquet('{place}/**/*.parquet', hive_partitioning = true)")
    return sorted(rows.to_arrow_table().to_pylist(), key=lambda row: row["id"])


def read_by_polars(place: str) -> list[dict[str, Any]]:
    options = {"aws_allow_http": "true"} if place.startswith("s3:") else None
    rows = pl.read_parquet(f"{place}/**/*.parquet", hive_partitioning=True, storage_options=options)
    return rows.sort("id").to_dicts()


class TestFiles(SinkContract):
    replaces = False

    @property
    def place(self) -> Path:
        return self.folder / "revenue"

    def sink(self) -> Sink:
        return files(self.place)

    def read(self) -> list[dict[str, Any]]:
        return pl.read_parquet(self.place).to_dicts() if self.place.exists() else []


class TestPartitionedFiles(TestFiles):
    def sink(self) -> Sink:
        return files(self.place, partition_by="product")

    def read(self) -> list[dict[str, Any]]:
        return pl.read_parquet(self.place, hive_partitioning=True).to_dicts() if self.place.exists() else []


def test_duckdb_and_polars_read_the_rows_and_partitions(tmp_path: Path, context: Contexts) -> None:
    place = str(tmp_path / "orders")
    sink = files(place, partition_by=["day", "shop"])
    tasks = [ORDERS.slice(0, 2), ORDERS.slice(2)]
    committed(sink, context(ORDERS), 0, stage(sink, context(ORDERS), tmp_path / "staged", *tasks))
    assert list(tmp_path.glob("staged/*")) == []  # no copy of the rows next to the checkpoint
    columns = ("id", "day", "shop", "amount")
    for read in (read_by_duckdb, read_by_polars):
        assert [{name: row[name] for name in columns} for row in read(place)] == ROWS
    assert {path.parent.parent.name for path in Path(place).rglob("*.parquet")} == {
        "day=2026-01-01",
        "day=2026-01-02",
        "day=__HIVE_DEFAULT_PARTITION__",
    }


def test_only_committed_files_are_seen_and_each_batch_once(
    place: str, tmp_path: Path, context: Contexts
) -> None:
    sink, given = files(place, partition_by="shop"), context(ORDERS)
    staged = stage(sink, given, tmp_path / "staged", ORDERS.slice(0, 2), ORDERS.slice(2), small_tasks=(0,))
    committed(sink, given, 0, staged)
    repeated = stage(sink, given, tmp_path / "staged", ORDERS)
    with closing(sink.open(given)) as writer:
        writer.commit(0, repeated)
        assert writer.last_batch() == 0
    names = stored(place)
    assert len(names["shown"]) == 4
    assert names["staged"]
    sink.discard(given, keep=())
    assert stored(place) == {**names, "staged": []}
    found = [(row["id"], row["shop"], row["amount"]) for row in read_by_polars(place)]
    assert found == [(row["id"], row["shop"], row["amount"]) for row in ROWS]


def stored(place: str) -> dict[str, list[str]]:
    where = files_module._Place.of(place)
    hidden = f"{where.hidden}/shop.revenue"
    return {
        "shown": sorted(where.store.names(where.shown)),
        "staged": where.store.names(f"{hidden}/staged"),
        "batches": where.store.names(f"{hidden}/batches"),
    }


def test_a_driver_that_dies_while_it_moves_files_is_followed_by_one_that_moves_the_rest(
    place: str, tmp_path: Path, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, given = files(place), context(ORDERS)
    store = type(files_module._Place.of(place).store)
    move, moved = store.move, []

    def dies(self: Any, name: str, final: str) -> bool:
        if moved:
            raise KeyboardInterrupt
        moved.append(name)
        return move(self, name, final)

    staged = stage(sink, given, tmp_path / "staged", ORDERS.slice(0, 2), ORDERS.slice(2))
    with monkeypatch.context() as patch:
        patch.setattr(store, "move", dies)
        with pytest.raises(KeyboardInterrupt):
            committed(sink, given, 0, staged)
    assert len(stored(place)["shown"]) == 1
    sink.discard(given, keep=())  # the next driver begins with this
    assert len(stored(place)["shown"]) == 2
    with closing(sink.open(given)) as writer:
        assert writer.last_batch() == 0


def test_of_two_drivers_that_commit_one_batch_only_the_first_succeeds(
    place: str, tmp_path: Path, context: Contexts
) -> None:
    sink, given = files(place), context(ORDERS)
    one, other = sink.open(given), sink.open(given)
    staged = [stage(sink, given, tmp_path / "staged", ORDERS) for _ in range(2)]
    newest = other.last_batch
    other.last_batch = lambda: None  # type: ignore[method-assign]  it asked before the first one committed
    one.commit(0, staged[0])
    other.commit(0, staged[1])
    assert newest() == 0
    assert len(stored(place)["shown"]) == 1


def test_a_later_generation_fences(tmp_path: Path, context: Contexts) -> None:
    sink = files(tmp_path / "orders")
    committed(sink, context(ORDERS, generation=2), 0, StagedBatch.of(ORDERS))
    with pytest.raises(WriterFenced, match="a later generation of the job"):
        sink.open(context(ORDERS))


def test_a_committed_file_that_is_gone_is_named(tmp_path: Path, context: Contexts) -> None:
    sink = files(tmp_path / "orders")
    committed(sink, context(ORDERS), 0, StagedBatch.of(ORDERS))
    (name,) = (tmp_path / "orders").iterdir()
    name.unlink()
    with pytest.raises(StagedFileLost, match=r"shop\.revenue-1-0-0\.parquet was committed"):
        sink.open(context(ORDERS))


def test_a_folder_that_cannot_be_written_is_waited_for(tmp_path: Path, context: Contexts) -> None:
    (tmp_path / "lake").write_text("a file where the folder is to be")
    sink = files(tmp_path / "lake" / "orders")
    staged = stage(sink, context(ORDERS), tmp_path / "staged", ORDERS)
    assert staged.tokens == []
    with pytest.raises(TargetUnavailable, match=r"files .*lake/orders: .*Not a directory"):
        committed(sink, context(ORDERS), 0, staged)
    (tmp_path / "lake").unlink()
    committed(sink, context(ORDERS), 0, staged)  # from the rows that the task kept
    assert len(read_by_polars(str(tmp_path / "lake" / "orders"))) == 4


def test_manifests_name_the_files_of_each_batch(tmp_path: Path, context: Contexts) -> None:
    sink = files(tmp_path / "orders")
    for batch in (3, 7):
        committed(sink, context(ORDERS), batch, StagedBatch.of(ORDERS))
    manifests = sorted((tmp_path / ".orders.headrace").rglob("*.json"))
    assert [path.name for path in manifests] == ["000000000003.json", "000000000007.json"]
    finals = [final for path in manifests for _, final in json.loads(path.read_text())]
    assert sorted(finals) == sorted(map(str, (tmp_path / "orders").iterdir()))
    assert LocalFileStore().has(finals[0])


def test_mistakes_are_named(tmp_path: Path, context: Contexts) -> None:
    for location in ("s3://bucket", "ftp://host/x", "/", "lake/_hidden"):
        with pytest.raises(Misuse, match="files: "):
            files(location)
    with pytest.raises(Misuse, match="format 'csv' is unknown"):
        files("lake", format="csv")  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="name each column once"):
        files("lake", partition_by=["day", "day"])
    with pytest.raises(IncompatibleTarget, match="needs month"):
        files(tmp_path / "x", partition_by="month").open(context(ORDERS))
    with pytest.raises(IncompatibleTarget, match="names all columns"):
        files(tmp_path / "x", partition_by="id").open(
            replace(context(ORDERS), schema=ORDERS.schema.remove(3).remove(2).remove(1))
        )
