"""What people see of state: figures of operators and the rows of a key, after each batch that is kept."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.columns.first_rows import FirstRowsKernel
from headrace.columns.joining import From, JoinKernel
from headrace.columns.keyed import Times
from headrace.engine.description import Description
from headrace.errors import Misuse
from headrace.state.files import LocalStateFiles
from headrace.state.inspection import list_operators, read_rows
from headrace.state.joins import JoinOperatorState
from headrace.state.keyed import KeyedState
from headrace.state.operators import OperatorManifest, write_operator
from headrace.streams.job_folder import JobFolder

TIME = pa.timestamp("us", "UTC")


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    """A job that has deduplicated events of two partitions in three batches."""
    folder = JobFolder.of(tmp_path, "shop", "once")
    folder.accept(
        Description(
            generation=1,
            inputs=("events",),
            output="firsts",
            mode="append",
            schema="x",
            state={"deduplicate-1": "rows that passed"},
        )
    )
    location = f"{folder.checkpoint}/operators/deduplicate-1"
    write_operator(
        location, OperatorManifest(partitions=2, outline="rows that passed", keys=("city", "id")), batch=0
    )
    kernel = FirstRowsKernel(keys=("city", "id"), time="at", arrival="arrival", within_us=100)
    for partition, cities in enumerate((["Oslo", "Rome"], ["Riga"])):
        files = LocalStateFiles(Path(location) / str(partition))
        for batch in range(3):
            columns = {"city": cities, "id": pa.array([batch] * len(cities), pa.int64())}
            times = pa.array([batch + 1] * len(cities), TIME)
            rows = pa.table({**columns, "at": times, "arrival": range(len(cities))})
            KeyedState(files=files, keys=kernel.keys, kernel=kernel).advance(batch, rows, Times(0, 0))
    return folder


def location(folder: JobFolder) -> str:
    return f"{folder.checkpoint}/operators"


def headrace(folder: JobFolder, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--state", str(folder.path.parents[1])])


def test_operators_are_listed_with_rows_sizes_and_batches(folder: JobFolder) -> None:
    (operator,) = list_operators(location(folder))
    assert (operator.operator, operator.partitions, operator.rows) == ("deduplicate-1", 2, 9)
    assert (operator.batch, operator.batches) == (2, (1, 2))
    assert operator.byte_size > 0 < operator.state_ms
    (before,) = list_operators(location(folder), batch=1)
    assert before.rows == 6
    with pytest.raises(Misuse, match=r"after batch 0 is not there: that of the batches 1, 2 is"):
        list_operators(location(folder), batch=0)


def test_a_batch_that_only_some_partitions_have_does_not_count(folder: JobFolder) -> None:
    (Path(location(folder)) / "deduplicate-1" / "0" / "2.json").unlink()
    (operator,) = list_operators(location(folder))
    assert (operator.batch, operator.rows) == (1, 6)


def test_the_command_lists_operators_and_shows_the_rows_of_a_key(folder: JobFolder) -> None:
    lines = headrace(folder, "state", "once").stdout.splitlines()
    assert lines[1].split()[:4] == ["deduplicate-1", "2", "2", "9"]
    (listed,) = json.loads(headrace(folder, "state", "once", "--json").stdout)
    assert (listed["rows"], listed["keys"]) == (9, ["city", "id"])
    key = ["--key", "city=Oslo", "--key", "id=1"]
    (row,) = json.loads(headrace(folder, "state", "once", "deduplicate-1", *key, "--json").stdout)
    assert (row["state_partition"], row["city"], row["id"]) == (0, "Oslo", 1)
    assert row["state_expires"].startswith("1970-01-01 00:00:00.000102")
    rows = json.loads(
        headrace(
            folder, "state", "once", "deduplicate-1", "--key", "city=Rome", "--batch", "1", "--json"
        ).stdout
    )
    assert sorted(row["id"] for row in rows) == [0, 1]


def test_mistakes_are_told(folder: JobFolder) -> None:
    for arguments, message in (
        (["nothing"], "no job named 'nothing'"),
        (["once", "deduplicate-2"], "Did you mean 'deduplicate-1'?"),
        (["once", "--key", "a"], "--key needs an OPERATOR"),
        (["once", "deduplicate-1", "--key", "a"], "names no column: use COLUMN=VALUE"),
        (["once", "deduplicate-1", "--key", "town=a"], "no column 'town'"),
        (["once", "deduplicate-1", "--key", "id=x"], "'x' is no value of the column 'id'"),
        (["once", "--batch", "7"], "after batch 7 is not there"),
    ):
        result = headrace(folder, "state", *arguments)
        assert message in result.output


def test_more_rows_than_the_limit_are_announced(folder: JobFolder) -> None:
    result = headrace(folder, "state", "once", "deduplicate-1", "--limit", "4")
    assert len(result.stdout.splitlines()) == 5
    assert "more rows than 4" in result.stderr


def test_a_job_is_described_with_its_state(folder: JobFolder) -> None:
    assert (
        "keeps       deduplicate-1: rows that passed (9 rows, "
        in headrace(folder, "job", "describe", "once").stdout
    )
    document = json.loads(headrace(folder, "job", "describe", "once", "--json").stdout)
    assert document["state"][0]["rows"] == 9


def test_the_rows_of_a_join_are_shown_with_their_sides(tmp_path: Path) -> None:
    kernel = JoinKernel(
        keys=(),
        columns=(("l",), ("r",)),
        keeps=(True, False),
        before_us=9,
        after_us=9,
        result=(From("l", 0), From("r", 1)),
        output=pa.schema([("l", pa.int64()), ("r", pa.int64())]),
    )
    rows = pa.table(
        {
            "side": pa.array([0, 1], pa.int8()),
            "code": [5, 6],
            "at": pa.array([1, 2], TIME),
            "l": [7, None],
            "r": [None, 8],
        }
    )
    write_operator(str(tmp_path), OperatorManifest(partitions=1, outline="a join", keys=("code",)), batch=0)
    list(
        JoinOperatorState(files=LocalStateFiles(tmp_path / "0"), kernel=kernel).advance(0, rows, Times(0, 0))
    )
    found = [row for part in read_rows(str(tmp_path), batch=0) for row in part.to_pylist()]
    assert [(row["state_side"], row["code"], row["l"], row["r"]) for row in found] == [
        ("left", 5, 7, None),
        ("right", 6, None, 8),
    ]
