"""Tables of SQLite: what they hold after batches, and what they refuse."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Misuse
from headrace.sinks.delivery import SinkDelivery
from headrace.sinks.sink import IncompatibleTarget, RowsRejected, SinkContext, TargetUnavailable, WriterFenced
from headrace.sinks.sqlite import sqlite
from headrace.sinks.staging import StagedBatch

Contexts = Callable[..., SinkContext]
SALES = pa.table({"product": ["tea", "cup"], "revenue": [3.5, 9.0]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def database(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def test_values_are_stored_in_sqlites_types(
    file: Path, database: sqlite3.Connection, context: Contexts
) -> None:
    rows = pa.table(
        {
            "text": ["tea", None],
            "number": pa.array([2**62, None], pa.int64()),
            "flag": [True, None],
            "real": [1.5, None],
            "exact": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "at": pa.array([datetime(2026, 1, 1, 12, 0, 0, 5, UTC), None]),
            "day": [date(2026, 2, 28), None],
            "span": pa.array([timedelta(seconds=1.5), None], pa.duration("us")),
            "bytes": [b"\x00tea", None],
            "parts": [{"names": ["a", "b"], "price": 1.5}, None],
        }
    )
    with closing(sqlite("types", file=file).open(context(rows))) as target:
        target.commit(0, StagedBatch.of(rows))
    assert database.execute("SELECT * FROM types").fetchall() == [
        (
            *("tea", 2**62, 1, 1.5, "1.10", "2026-01-01T12:00:00.000005+00:00", "2026-02-28", 1.5),
            *(b"\x00tea", '{"names": ["a", "b"], "price": 1.5}'),
        ),
        (None,) * 10,
    ]


def test_missing_columns_are_added_to_the_table(
    file: Path, database: sqlite3.Connection, context: Contexts
) -> None:
    more = SALES.append_column("city", pa.array(["Oslo", None]))
    for number, rows in enumerate((SALES, more)):
        with closing(sqlite("revenue", key="product", file=file).open(context(rows))) as target:
            target.commit(number, StagedBatch.of(rows))
    assert database.execute("SELECT city FROM revenue ORDER BY product").fetchall() == [(None,), ("Oslo",)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("product TEXT PRIMARY KEY, revenue TEXT", "column revenue is of type TEXT, and the rows have REAL"),
        ("product TEXT PRIMARY KEY, city TEXT NOT NULL", "city is NOT NULL without a default"),
        ("product TEXT, revenue REAL", r"CREATE UNIQUE INDEX … ON revenue \(product\)"),
        ("name TEXT PRIMARY KEY, revenue REAL", "its key has no column product"),
    ],
)
def test_an_incompatible_table_is_rejected_before_anything_is_written(
    file: Path, database: sqlite3.Connection, context: Contexts, table: str, message: str
) -> None:
    database.execute(f"CREATE TABLE revenue ({table})")
    with pytest.raises(IncompatibleTarget, match=message):
        sqlite("revenue", key="product", file=file).open(context(SALES))
    assert database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'headrace%'").fetchall() == []


def test_a_unique_index_can_be_the_key(file: Path, database: sqlite3.Connection, context: Contexts) -> None:
    database.execute("CREATE TABLE revenue (id INTEGER PRIMARY KEY, product VARCHAR UNIQUE, revenue NUMERIC)")
    with closing(sqlite("revenue", key="product", file=file).open(context(SALES))) as target:
        target.commit(0, StagedBatch.of(SALES))
    assert database.execute("SELECT product, revenue FROM revenue").fetchall() == [("tea", 3.5), ("cup", 9)]


def test_rejected_rows_are_named_and_nothing_is_written(
    file: Path, database: sqlite3.Connection, context: Contexts
) -> None:
    database.execute("CREATE TABLE stock (item TEXT, n INTEGER CHECK (n >= 0))")
    rows = pa.table(
        {"item": [f"i{n}" for n in range(20)], "n": [-1 if n in (3, 17) else n for n in range(20)]}
    )
    with closing(sqlite("stock", file=file).open(context(rows))) as target:
        with pytest.raises(
            RowsRejected, match="2 rows were rejected; row 3: CHECK constraint failed"
        ) as refusal:
            target.commit(0, StagedBatch.of(rows))
        assert sorted(refusal.value.rows) == [3, 17]
        assert not refusal.value.retryable
        assert target.last_batch() is None
    assert database.execute("SELECT count(*) FROM stock").fetchone() == (0,)


@pytest.mark.parametrize(
    ("column", "keys"),
    [("TEXT COLLATE NOCASE", ["tea", "TEA"]), ("NUMERIC", ["1", "1.0"]), ("REAL", [0.0, -0.0])],
)
def test_the_last_row_counts_among_keys_that_sqlite_treats_as_equal(
    file: Path, database: sqlite3.Connection, context: Contexts, column: str, keys: list[Any]
) -> None:
    database.execute(f"CREATE TABLE t (k {column} PRIMARY KEY, v INTEGER)")
    rows = pa.table({"k": keys, "v": [1, 2], "_deleted": [False, False]})
    gone = rows.set_column(2, "_deleted", pa.array([False, True]))
    with closing(sqlite("t", key="k", mode="mirror", file=file).open(context(rows))) as target:
        target.commit(0, StagedBatch.of(rows))
        assert database.execute("SELECT v FROM t").fetchall() == [(2,)]
        target.commit(1, StagedBatch.of(gone))
        assert database.execute("SELECT v FROM t").fetchall() == []
        target.commit(2, StagedBatch.of(gone.take([1, 0])))
    assert database.execute("SELECT v FROM t").fetchall() == [(1,)]


def test_each_row_without_a_key_is_rejected(file: Path, context: Contexts) -> None:
    rows = pa.table({"k": [1.0, None, float("nan"), None], "v": [1, 2, 3, 4]})
    sink = sqlite("t", key="k", file=file)
    with (
        closing(sink.open(context(rows))) as target,
        pytest.raises(RowsRejected, match="NOT NULL") as refusal,
    ):
        target.commit(0, StagedBatch.of(rows))
    assert list(refusal.value.rows) == [1, 2, 3]


def test_a_delete_that_violates_a_foreign_key_is_rejected(
    file: Path, database: sqlite3.Connection, context: Contexts
) -> None:
    database.executescript(
        "CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER); CREATE TABLE u (k TEXT REFERENCES t);"
        "INSERT INTO t VALUES ('tea', 1); INSERT INTO u VALUES ('tea');"
    )
    rows = pa.table({"k": ["cup", "tea"], "v": [1, 2], "_deleted": [False, True]})
    sink = sqlite("t", key="k", mode="mirror", file=file)
    with closing(sink.open(context(rows))) as target, pytest.raises(RowsRejected, match="FOREIGN") as refusal:
        target.commit(0, StagedBatch.of(rows))
    assert (list(refusal.value.rows), refusal.value.retryable) == ([1], True)


DEFERRED = "REFERENCES product DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_that_violate_a_deferred_foreign_key_are_dead_letters_and_the_others_are_written(
    file: Path, database: sqlite3.Connection, context: Contexts, mode: Any
) -> None:
    database.executescript(
        "CREATE TABLE product (name TEXT PRIMARY KEY); INSERT INTO product VALUES ('tea');"
        f"CREATE TABLE sold (product TEXT {DEFERRED}, revenue REAL, UNIQUE (product));"
    )
    key = "product" if mode == "upsert" else ()
    sink = sqlite("sold", key=key, mode=mode, file=file, max_attempts=1)
    delivery = SinkDelivery(sink, context(SALES), on_status=lambda _: None, wait=lambda _: False)
    letters = delivery.deliver(0, StagedBatch.of(SALES))
    delivery.close()
    assert [(json.loads(letter.value)["product"], letter.reason) for letter in letters] == [
        ("cup", "FOREIGN KEY constraint failed: sold references product")
    ]
    assert database.execute("SELECT product FROM sold").fetchall() == [("tea",)]


def test_a_row_whose_deferred_foreign_key_refers_to_a_later_row_of_the_batch_is_written(
    file: Path, database: sqlite3.Connection, context: Contexts
) -> None:
    database.execute(
        "CREATE TABLE person (name TEXT PRIMARY KEY, boss TEXT "
        "REFERENCES person DEFERRABLE INITIALLY DEFERRED)"
    )
    rows = pa.table({"name": ["Ann", "Bob", "Cat", "Dan"], "boss": ["Bob", None, "Eve", "Cat"]})
    sink = sqlite("person", key="name", file=file, max_attempts=1)
    delivery = SinkDelivery(sink, context(rows), on_status=lambda _: None, wait=lambda _: False)
    letters = delivery.deliver(0, StagedBatch.of(rows))
    delivery.close()
    assert sorted(json.loads(letter.value)["name"] for letter in letters) == ["Cat", "Dan"]
    assert database.execute("SELECT name FROM person ORDER BY 1").fetchall() == [("Ann",), ("Bob",)]


@pytest.mark.parametrize("options", ["", " WITHOUT ROWID"])
def test_a_deferred_foreign_key_that_no_single_row_violates_stops_the_job_with_the_reason(
    file: Path, database: sqlite3.Connection, context: Contexts, options: str
) -> None:
    database.executescript(
        f"CREATE TABLE product (name TEXT PRIMARY KEY){options}; INSERT INTO product VALUES ('tea');"
        f"CREATE TABLE sold (product TEXT {DEFERRED}); INSERT INTO sold VALUES ('tea');"
    )
    rows = pa.table({"name": ["tea"], "_deleted": [True]})
    sink = sqlite("product", key="name", mode="mirror", file=file)
    with closing(sink.open(context(rows))) as target:
        with pytest.raises(
            IncompatibleTarget, match="deferred foreign key of sold, which references product"
        ):
            target.commit(0, StagedBatch.of(rows))
        assert target.last_batch() is None
    assert database.execute("SELECT count(*) FROM product").fetchone() == (1,)


def test_an_older_generation_is_fenced(file: Path, context: Contexts) -> None:
    sink = sqlite("sales", file=file)
    with closing(sink.open(context(SALES))) as old, closing(sink.open(context(SALES, generation=2))) as new:
        old.commit(7, StagedBatch.of(SALES))
        new.commit(0, StagedBatch.of(SALES))
        with pytest.raises(WriterFenced, match="a later generation"):
            old.commit(8, StagedBatch.of(SALES))


def test_a_missing_folder_is_unavailable(tmp_path: Path, context: Contexts) -> None:
    with pytest.raises(TargetUnavailable, match="sqlite sales: unable to open database file"):
        sqlite("sales", file=tmp_path / "disk" / "shop.db").open(context(SALES))


def test_the_file_comes_from_the_environment(
    file: Path, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_SQLITE", raising=False)
    with pytest.raises(Misuse, match="set HEADRACE_SQLITE in the environment"):
        sqlite("sales").open(context(SALES))
    monkeypatch.setenv("HEADRACE_SQLITE", str(file))
    sqlite("sales").open(context(SALES)).close()
    assert file.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": ""}, "write the name of the table"),
        ({"table": "t", "max_attempts": 0}, "max_attempts must be at least 1"),
        ({"table": "t", "mode": "mirror"}, "needs a key"),
    ],
)
def test_an_invalid_declaration_is_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        sqlite(**arguments)
