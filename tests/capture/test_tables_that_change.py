"""Columns that come and go, identities, TRUNCATE, partitions: what the topic says then."""

import pytest

from headrace.capture.errors import CaptureError
from tests.capture.database import Database
from tests.cli.terminal import wait_until

TOPIC = "shop.public.t"


def test_columns_are_added_renamed_retyped_and_dropped_while_capture_runs(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text, b int)", "INSERT INTO t VALUES (1, 'x', 1)")
    database.capture("t")
    database.run("INSERT INTO t VALUES (2, 'y', 2)", "ALTER TABLE t ADD c boolean DEFAULT true")
    database.run("INSERT INTO t VALUES (3, 'z', 3)", "ALTER TABLE t RENAME a TO name")
    database.run("INSERT INTO t VALUES (4, 'w', 4)", "ALTER TABLE t ALTER b TYPE numeric")
    database.commit(
        "INSERT INTO t VALUES (5, 'v', 5.5)", "ALTER TABLE t DROP c", "INSERT INTO t VALUES (6, 'u', 6)"
    )
    database.run("ALTER TABLE t RENAME id TO number", "DELETE FROM t WHERE number = 1")
    database.capture("t")
    assert [after for *_, after in database.events(TOPIC)] == [
        {"id": 1, "a": "x", "b": 1},
        {"id": 2, "a": "y", "b": 2},
        {"id": 3, "a": "z", "b": 3, "c": True},
        {"id": 4, "name": "w", "b": 4, "c": True},
        {"id": 5, "name": "v", "b": "5.5", "c": True},
        {"id": 6, "name": "u", "b": "6"},
        None,
    ]
    assert database.events(TOPIC)[-1] == ("1", "d", {"number": 1}, None)


def test_a_table_that_is_renamed_keeps_its_topic(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    with database.capturing("t"):
        database.run("INSERT INTO t VALUES (1)", "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (2)")
        wait_until(lambda: len(database.table(TOPIC)) == 2, "both rows")


def test_with_full_identity_events_show_the_row_as_it_was(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'x')",
    )
    database.capture("t")
    database.run("UPDATE t SET a = 'y'", "DELETE FROM t")
    database.capture("t")
    assert database.events(TOPIC)[1:] == [
        ("1", "u", {"id": 1, "a": "x"}, {"id": 1, "a": "y"}),
        ("1", "d", {"id": 1, "a": "y"}, None),
    ]


def test_an_index_can_be_the_identity_and_is_the_key_then(database: Database) -> None:
    database.run(
        "CREATE TABLE t (a int, code text NOT NULL)",
        "CREATE UNIQUE INDEX codes ON t (code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX codes",
        "INSERT INTO t VALUES (1, 'x')",
    )
    database.capture("t")
    database.run("UPDATE t SET a = 2", "DELETE FROM t")
    database.capture("t")
    assert [(key, op) for key, op, *_ in database.events(TOPIC)] == [("x", "r"), ("x", "u"), ("x", "d")]


def test_without_a_key_full_rows_are_events_without_keys(database: Database) -> None:
    database.run(
        "CREATE TABLE t (a int)", "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (1), (1)"
    )
    database.capture("t")
    database.run("UPDATE t SET a = 2", "TRUNCATE t")
    database.capture("t")
    assert database.events(TOPIC) == [
        (None, "r", None, {"a": 1}),
        (None, "r", None, {"a": 1}),
        (None, "u", {"a": 1}, {"a": 2}),
        (None, "u", {"a": 1}, {"a": 2}),
        (None, "t", None, None),
    ]


def test_truncate_ends_every_row_that_was_there(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    database.capture("t")
    database.run("DELETE FROM t WHERE id = 2")
    database.commit("INSERT INTO t VALUES (3)", "TRUNCATE t", "INSERT INTO t VALUES (4)")
    database.capture("t")
    assert [(key, op) for key, op, *_ in database.events(TOPIC)][2:] == [
        ("2", "d"),
        ("3", "c"),
        ("1", "t"),
        ("3", "t"),
        ("4", "c"),
    ]
    assert list(database.table(TOPIC)) == ["4"]


def test_a_partitioned_table_is_one_topic(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO t VALUES (1)",
    )
    database.capture("t*")
    database.run(
        "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (10) TO (20)", "INSERT INTO t VALUES (11)"
    )
    database.capture("t*")
    assert [(key, op) for key, op, *_ in database.events(TOPIC)] == [("1", "r"), ("11", "c")]


def test_a_transaction_is_seen_whole_or_not_at_all_however_large(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)", "CREATE TABLE u (id int PRIMARY KEY)")
    database.capture("t", "u")
    database.commit(
        "INSERT INTO t SELECT g, repeat('x', 300) FROM generate_series(1, 5000) g",
        "INSERT INTO u VALUES (1)",
    )
    assert database.capture("t", "u") == 5_001
    first, last = database.records(TOPIC)[0][1], database.records("shop.public.u")[0][1]
    assert first["source"]["txId"] == last["source"]["txId"]
    assert len(database.table(TOPIC)) == 5_000


def test_a_table_that_loses_its_key_stops_the_capture_with_the_reason(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    database.capture("t")
    database.run(
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    with pytest.raises(CaptureError, match="lost what its rows are told apart by"):
        database.capture("t")


def test_a_table_that_was_left_out_for_a_while_has_a_new_snapshot(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    database.run("INSERT INTO t VALUES (1), (2)")
    database.capture("t", "u")
    database.capture("u")
    database.run("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    database.capture("t", "u")
    assert sorted(map(str, database.table(TOPIC))) == ["2", "3"]
