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
from headrace.sinks.delivery import Delivery
from headrace.sinks.sink import Place, Refused, Superseded, Unavailable, Unsuitable
from headrace.sinks.sqlite import sqlite

Places = Callable[..., Place]
SALES = pa.table({"product": ["tea", "cup"], "revenue": [3.5, 9.0]})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def database(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        yield connection


def test_values_are_stored_as_sqlite_knows_them(
    file: Path, database: sqlite3.Connection, place: Places
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
    with closing(sqlite("types", file=file).open(place(rows))) as target:
        target.write(0, rows)
    assert database.execute("SELECT * FROM types").fetchall() == [
        (
            *("tea", 2**62, 1, 1.5, "1.10", "2026-01-01T12:00:00.000005+00:00", "2026-02-28", 1.5),
            *(b"\x00tea", '{"names": ["a", "b"], "price": 1.5}'),
        ),
        (None,) * 10,
    ]


def test_columns_that_the_table_lacks_are_added(
    file: Path, database: sqlite3.Connection, place: Places
) -> None:
    more = SALES.append_column("city", pa.array(["Oslo", None]))
    for number, rows in enumerate((SALES, more)):
        with closing(sqlite("revenue", key="product", file=file).open(place(rows))) as target:
            target.write(number, rows)
    assert database.execute("SELECT city FROM revenue ORDER BY product").fetchall() == [(None,), ("Oslo",)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("product TEXT PRIMARY KEY, revenue TEXT", "column revenue is of type TEXT, and the rows have REAL"),
        ("product TEXT PRIMARY KEY, city TEXT NOT NULL", "city must not be null and has no default"),
        ("product TEXT, revenue REAL", r"CREATE UNIQUE INDEX … ON revenue \(product\)"),
        ("name TEXT PRIMARY KEY, revenue REAL", "its key has no column product"),
    ],
)
def test_a_table_that_is_another_one_is_refused_before_anything_is_written(
    file: Path, database: sqlite3.Connection, place: Places, table: str, message: str
) -> None:
    database.execute(f"CREATE TABLE revenue ({table})")
    with pytest.raises(Unsuitable, match=message):
        sqlite("revenue", key="product", file=file).open(place(SALES))
    assert database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'headrace%'").fetchall() == []


def test_a_unique_index_is_as_good_as_a_primary_key(
    file: Path, database: sqlite3.Connection, place: Places
) -> None:
    database.execute("CREATE TABLE revenue (id INTEGER PRIMARY KEY, product VARCHAR UNIQUE, revenue NUMERIC)")
    with closing(sqlite("revenue", key="product", file=file).open(place(SALES))) as target:
        target.write(0, SALES)
    assert database.execute("SELECT product, revenue FROM revenue").fetchall() == [("tea", 3.5), ("cup", 9)]


def test_rows_that_the_table_does_not_take_are_named_and_nothing_is_written(
    file: Path, database: sqlite3.Connection, place: Places
) -> None:
    database.execute("CREATE TABLE stock (item TEXT, n INTEGER CHECK (n >= 0))")
    rows = pa.table(
        {"item": [f"i{n}" for n in range(20)], "n": [-1 if n in (3, 17) else n for n in range(20)]}
    )
    with closing(sqlite("stock", file=file).open(place(rows))) as target:
        with pytest.raises(Refused, match="2 rows were refused; row 3: CHECK constraint failed") as refusal:
            target.write(0, rows)
        assert sorted(refusal.value.rows) == [3, 17]
        assert refusal.value.final
        assert target.newest() is None
    assert database.execute("SELECT count(*) FROM stock").fetchone() == (0,)


@pytest.mark.parametrize(
    ("column", "keys"),
    [("TEXT COLLATE NOCASE", ["tea", "TEA"]), ("NUMERIC", ["1", "1.0"]), ("REAL", [0.0, -0.0])],
)
def test_of_keys_that_are_equal_to_sqlite_the_last_row_counts(
    file: Path, database: sqlite3.Connection, place: Places, column: str, keys: list[Any]
) -> None:
    database.execute(f"CREATE TABLE t (k {column} PRIMARY KEY, v INTEGER)")
    rows = pa.table({"k": keys, "v": [1, 2], "_deleted": [False, False]})
    gone = rows.set_column(2, "_deleted", pa.array([False, True]))
    with closing(sqlite("t", key="k", mode="mirror", file=file).open(place(rows))) as target:
        target.write(0, rows)
        assert database.execute("SELECT v FROM t").fetchall() == [(2,)]
        target.write(1, gone)
        assert database.execute("SELECT v FROM t").fetchall() == []
        target.write(2, gone.take([1, 0]))
    assert database.execute("SELECT v FROM t").fetchall() == [(1,)]


def test_rows_without_a_key_are_refused_each(file: Path, place: Places) -> None:
    rows = pa.table({"k": [1.0, None, float("nan"), None], "v": [1, 2, 3, 4]})
    sink = sqlite("t", key="k", file=file)
    with closing(sink.open(place(rows))) as target, pytest.raises(Refused, match="NOT NULL") as refusal:
        target.write(0, rows)
    assert list(refusal.value.rows) == [1, 2, 3]


def test_a_deletion_that_a_foreign_key_forbids_is_refused(
    file: Path, database: sqlite3.Connection, place: Places
) -> None:
    database.executescript(
        "CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER); CREATE TABLE u (k TEXT REFERENCES t);"
        "INSERT INTO t VALUES ('tea', 1); INSERT INTO u VALUES ('tea');"
    )
    rows = pa.table({"k": ["cup", "tea"], "v": [1, 2], "_deleted": [False, True]})
    sink = sqlite("t", key="k", mode="mirror", file=file)
    with closing(sink.open(place(rows))) as target, pytest.raises(Refused, match="FOREIGN") as refusal:
        target.write(0, rows)
    assert (list(refusal.value.rows), refusal.value.final) == ([1], False)


DEFERRED = "REFERENCES product DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_that_violate_a_deferred_foreign_key_are_dead_letters_and_the_others_are_written(
    file: Path, database: sqlite3.Connection, place: Places, mode: Any
) -> None:
    database.executescript(
        "CREATE TABLE product (name TEXT PRIMARY KEY); INSERT INTO product VALUES ('tea');"
        f"CREATE TABLE sold (product TEXT {DEFERRED}, revenue REAL, UNIQUE (product));"
    )
    key = "product" if mode == "upsert" else ()
    sink = sqlite("sold", key=key, mode=mode, file=file, tries=1)
    delivery = Delivery(sink, place(SALES), tell=lambda _: None, pause=lambda _: False)
    letters = delivery.deliver(0, SALES)
    delivery.close()
    assert [(json.loads(letter.value)["product"], letter.reason) for letter in letters] == [
        ("cup", "FOREIGN KEY constraint failed: sold references product")
    ]
    assert database.execute("SELECT product FROM sold").fetchall() == [("tea",)]


def test_a_row_whose_deferred_foreign_key_refers_to_a_later_row_of_the_batch_is_written(
    file: Path, database: sqlite3.Connection, place: Places
) -> None:
    database.execute(
        "CREATE TABLE person (name TEXT PRIMARY KEY, boss TEXT "
        "REFERENCES person DEFERRABLE INITIALLY DEFERRED)"
    )
    rows = pa.table({"name": ["Ann", "Bob", "Cat", "Dan"], "boss": ["Bob", None, "Eve", "Cat"]})
    sink = sqlite("person", key="name", file=file, tries=1)
    delivery = Delivery(sink, place(rows), tell=lambda _: None, pause=lambda _: False)
    letters = delivery.deliver(0, rows)
    delivery.close()
    assert sorted(json.loads(letter.value)["name"] for letter in letters) == ["Cat", "Dan"]
    assert database.execute("SELECT name FROM person ORDER BY 1").fetchall() == [("Ann",), ("Bob",)]


@pytest.mark.parametrize("options", ["", " WITHOUT ROWID"])
def test_a_deferred_foreign_key_that_no_single_row_violates_stops_the_job_with_the_reason(
    file: Path, database: sqlite3.Connection, place: Places, options: str
) -> None:
    database.executescript(
        f"CREATE TABLE product (name TEXT PRIMARY KEY){options}; INSERT INTO product VALUES ('tea');"
        f"CREATE TABLE sold (product TEXT {DEFERRED}); INSERT INTO sold VALUES ('tea');"
    )
    rows = pa.table({"name": ["tea"], "_deleted": [True]})
    sink = sqlite("product", key="name", mode="mirror", file=file)
    with closing(sink.open(place(rows))) as target:
        with pytest.raises(Unsuitable, match="deferred foreign key of sold, which references product"):
            target.write(0, rows)
        assert target.newest() is None
    assert database.execute("SELECT count(*) FROM product").fetchone() == (1,)


def test_an_older_series_of_batches_is_shut_out(file: Path, place: Places) -> None:
    sink = sqlite("sales", file=file)
    with closing(sink.open(place(SALES))) as old, closing(sink.open(place(SALES, generation=2))) as new:
        old.write(7, SALES)
        new.write(0, SALES)
        with pytest.raises(Superseded, match="one that began anew"):
            old.write(8, SALES)


def test_a_folder_that_is_not_there_is_waited_for(tmp_path: Path, place: Places) -> None:
    with pytest.raises(Unavailable, match="sqlite sales: unable to open database file"):
        sqlite("sales", file=tmp_path / "disk" / "shop.db").open(place(SALES))


def test_the_file_comes_from_the_environment(
    file: Path, place: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_SQLITE", raising=False)
    with pytest.raises(Misuse, match="set HEADRACE_SQLITE in the environment"):
        sqlite("sales").open(place(SALES))
    monkeypatch.setenv("HEADRACE_SQLITE", str(file))
    sqlite("sales").open(place(SALES)).close()
    assert file.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": ""}, "write the table's name"),
        ({"table": "t", "tries": 0}, "tries is at least 1"),
        ({"table": "t", "mode": "mirror"}, "needs a key"),
    ],
)
def test_an_output_that_makes_no_sense_is_refused_when_it_is_declared(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(Misuse, match=message):
        sqlite(**arguments)
