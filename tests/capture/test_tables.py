"""Captured tables in jobs: joins and views stay right after changes; columns are selected or hashed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from headrace import App, Rows
from headrace.capture.source import PreflightFailed
from headrace.streams.runner import Runner, RunOptions
from headrace.streams.table_view import TableView
from headrace.tables.row_values import RowReader
from tests.capture.database import Database, read_topic
from tests.streams.workshop import Recorder

PEOPLE = "CREATE TABLE employees (id bigint PRIMARY KEY, name text, dept int, since date, pay numeric(8, 2))"
DEPARTMENTS = "CREATE TABLE departments (id int PRIMARY KEY, title text)"
USERS = "CREATE TABLE users (id int PRIMARY KEY, name text, email text, card text)"
TOPIC = "shop.public.users"


def staff_app(url: str) -> App:
    app = App("staff")
    app.capture(url, tables=["employees", "departments"], name="shop")
    visits = app.stream("visits", "who long, n int")
    employees = app.table(
        "shop.public.employees", "id long, name string, dept int, pay decimal(8,2)", key="id"
    )
    departments = app.table("shop.public.departments", "id int, title string", key="id")
    changes = app.stream(
        "shop.public.employees",
        "op string, before struct<id: long>, after struct<id: long, name: string, pay: decimal(8,2)>, "
        "ts_ms long",
    )

    @app.job(into=app.topic("seen", partitions=1))
    def seen() -> Rows:
        return visits.join(employees, on={"who": "id"}, as_of="latest")

    @app.job(into=app.view("staff", key="id", partitions=1))
    def staff() -> TableView:
        return employees.join(departments, on={"dept": "id"})

    @app.job(into=app.topic("steps", partitions=1))
    def steps() -> DataFrame:
        return changes.df.selectExpr("op", "coalesce(after.id, before.id) AS id", "after.pay", "ts_ms")

    return app


def visit(bootstrap: str, number: int, *people: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for who in people:
        producer.produce("visits", json.dumps({"who": who, "n": number}).encode(), partition=0)
    assert producer.flush(100) == 0


def values(bootstrap: str, topic: str) -> list[Any]:
    return [value for _, value in read_topic(bootstrap, topic)]


@pytest.mark.timeout(240)
def test_jobs_over_captured_tables_stay_consistent_with_the_database(
    spark: SparkSession, database: Database, tmp_path: Path
) -> None:
    def run() -> None:
        recorder = Recorder()
        order = RunOptions(app=staff_app(database.url), once=True, broker=database.bootstrap, state=tmp_path)
        assert Runner(order, recorder).run() == 0, recorder.news

    database.run(
        PEOPLE,
        DEPARTMENTS,
        "INSERT INTO departments VALUES (1, 'Human Resources'), (2, 'Information Technology')",
        "INSERT INTO employees VALUES (1, 'Alice', 1, now(), 10.50), (2, 'Bob', 2, now(), 20)",
    )
    visit(database.bootstrap, 1, 1, 2, 3)
    run()
    database.run(
        "INSERT INTO employees VALUES (3, 'Carol', NULL, now(), NULL)",
        "UPDATE employees SET dept = 1 WHERE id = 2",
        "UPDATE departments SET title = 'People' WHERE id = 1",
        "DELETE FROM departments WHERE id = 2",
        "DELETE FROM employees WHERE id = 1",
    )
    visit(database.bootstrap, 2, 1, 2, 3)
    run()
    joined = [(row["n"], row["who"], row["name"], row["pay"]) for row in values(database.bootstrap, "seen")]
    assert joined == [
        (1, 1, "Alice", 10.5),
        (1, 2, "Bob", 20.0),
        (1, 3, None, None),
        (2, 1, None, None),
        (2, 2, "Bob", 20.0),
        (2, 3, "Carol", None),
    ]
    steps = [(row["op"], row["id"], row["pay"]) for row in values(database.bootstrap, "steps")]
    assert steps == [
        *[("r", 1, 10.5), ("r", 2, 20.0)],
        *[("c", 3, None), ("u", 2, 20.0), ("d", 1, None)],  # and the record without a value is none
    ]
    view: dict[str | None, Any] = {}
    for key, row in read_topic(database.bootstrap, "staff"):
        view[key] = None if row is None else (row["name"], row["dept"], row["title"])
    assert {key: row for key, row in view.items() if row is not None} == {
        "2": ("Bob", 1, "People"),
        "3": ("Carol", None, None),
    }


def test_values_are_rows_or_change_events() -> None:
    reader = RowReader(pa.struct([("id", pa.int64()), ("op", pa.string())]))
    event = {"before": None, "after": {"id": 1, "op": "x"}, "source": {}, "op": "c", "ts_ms": 1}
    documents = [None, event, {**event, "after": None, "op": "d"}, {**event, "after": None, "op": "t"}]
    texts = [None if each is None else json.dumps(each).encode() for each in documents]
    rows, deleted, errors = reader.read(pa.array([*texts, b"garbled"], pa.binary()))
    assert rows[1].as_py() == {"id": 1, "op": "x"}
    assert deleted.to_pylist() == [True, False, True, True, False]
    assert errors is not None
    assert errors.is_valid().to_pylist() == [False, False, False, False, True]
    rows, deleted, _ = reader.read(pa.array([b'{"id": 1, "op": "d"}', None], pa.binary()))
    assert rows[0].as_py() == {"id": 1, "op": "d"}
    assert deleted.to_pylist() == [False, True]


def test_an_invalid_value_does_not_decide_the_format_of_others() -> None:
    reader = RowReader(pa.struct([("id", pa.int64())]))
    event = b'{"before": null, "after": {"id": 1}, "source": {}, "op": "u"}'
    bad_event = event.replace(b"1", b'"one"')
    nested = b'{"id": 2, "note": {"before": 1, "after": 2, "source": 3, "op": 4}}'
    names = b'"before" "after" "op" "source"'
    values = [b"garbled", event, b'{"id": 3}', b"{}", nested, bad_event, None, names]
    rows, deleted, errors = reader.read(pa.array(values, pa.binary()))
    assert [row and row["id"] for row in rows.to_pylist()] == [None, 1, 3, None, 2, None, None, None]
    assert deleted.to_pylist() == [False] * 6 + [True, False]
    assert errors is not None
    assert [number for number, error in enumerate(errors) if error.is_valid] == [0, 5, 7]


def test_columns_are_selected_masked_and_hashed(database: Database) -> None:
    database.run(USERS, "INSERT INTO users VALUES (1, 'Anna', 'a@example.com', '1234')")
    choice = {
        "columns": ("users.email", "users.card"),
        "mask": ("users.card",),
        "hash": ("users.email",),
        "salt": "pepper",
    }
    database.capture("users", **choice)
    database.run("INSERT INTO users VALUES (2, 'Bob', 'a@example.com', NULL)")
    database.capture("users", **choice)
    digest = hashlib.sha256(b"peppera@example.com").hexdigest()
    assert database.table(TOPIC) == {
        "1": {"id": 1, "email": digest, "card": "****"},
        "2": {"id": 2, "email": digest, "card": None},
    }


@pytest.mark.parametrize("choice", [{"mask": ("users.id",)}, {"hash": ("users.nothing",)}])
def test_keys_and_unknown_columns_cannot_be_masked(
    database: Database, choice: dict[str, tuple[str, ...]]
) -> None:
    database.run(USERS)
    with pytest.raises(PreflightFailed, match=r"users\.(id is part of the key|nothing)"):
        database.capture("users", **choice)
