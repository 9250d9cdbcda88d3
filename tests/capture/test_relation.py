"""Columns that come and go, identities, TRUNCATE, partitions: what the topic says then."""

import secrets

import pytest

from headrace.capture.source import CaptureError
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


def test_replica_identity_full_shows_the_old_row(database: Database) -> None:
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


def test_a_replica_identity_index_is_the_key(database: Database) -> None:
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


def test_replica_identity_full_without_a_primary_key_has_no_keys(database: Database) -> None:
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


def test_truncate_deletes_every_row(database: Database) -> None:
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


def test_a_large_transaction_is_visible_atomically(database: Database) -> None:
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


def test_a_dropped_primary_key_stops_the_capture(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    database.capture("t")
    database.run(
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    with pytest.raises(CaptureError, match=r"has changed from \(id\) to \(none\)"):
        database.capture("t")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (code)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, code)",
    ],
)
def test_a_changed_key_stops_the_capture(database: Database, change: str) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, code int)", "INSERT INTO t VALUES (1, 10)")
    database.capture("t")
    database.run(change, "UPDATE t SET code = 11")
    with pytest.raises(CaptureError, match=r"the key of public\.t .* has changed from \(id\) to"):
        database.capture("t")


def test_updates_of_rows_with_toasted_keys_have_their_keys(database: Database) -> None:
    large = secrets.token_hex(1_250)
    for table, key in (("one", "k"), ("pair", "k, part"), ("whole", "k")):
        database.run(
            f"CREATE TABLE {table} (k text, part int, v int, big text, PRIMARY KEY ({key}))",
            f"ALTER TABLE {table} ALTER k SET STORAGE EXTERNAL",
            f"INSERT INTO {table} VALUES ('{large}', 1, 0, '{large * 2}'), ('{large}x', 1, 0, NULL)",
        )
    database.run("ALTER TABLE whole REPLICA IDENTITY FULL")
    database.capture("one", "pair", "whole")
    for table in ("one", "pair", "whole"):
        database.run(f"UPDATE {table} SET v = 1", f"DELETE FROM {table} WHERE k = '{large}x'")
    database.capture("one", "pair", "whole")
    for table in ("one", "pair", "whole"):
        rows = database.table(f"shop.public.{table}")
        assert [(row["k"], row["v"]) for row in rows.values()] == [(large, 1)]
        assert list(rows) == ([f'{{"k":"{large}","part":1}}'] if table == "pair" else [large])


def test_rows_of_child_tables_belong_to_the_child_tables(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text)",
        "CREATE TABLE child (extra int, PRIMARY KEY (id)) INHERITS (t)",
        "INSERT INTO t VALUES (1, 'parent')",
        "INSERT INTO child VALUES (2, 'child', 7)",
    )
    database.capture("t")
    database.run("INSERT INTO child VALUES (3, 'child', 8)", "UPDATE t SET a = upper(a)")
    database.capture("t")
    assert database.table(TOPIC) == {"1": {"id": 1, "a": "PARENT"}}
    database.capture("t", "child")
    database.run("DELETE FROM t WHERE id = 2")
    database.capture("t", "child")
    assert database.table("shop.public.child") == {"3": {"id": 3, "a": "CHILD", "extra": 8}}


def test_a_row_that_moves_to_another_partition_keeps_its_key(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int, year int, a text, PRIMARY KEY (id, year)) PARTITION BY RANGE (year)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE t_2_all PARTITION OF t_2 DEFAULT",
        "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b')",
    )
    database.capture("t")
    database.run("UPDATE t SET year = 12 WHERE id = 1", "UPDATE t_1 SET a = 'c'")
    database.capture("t")
    rows = database.table(TOPIC)
    assert rows == {
        '{"id":1,"year":12}': {"id": 1, "year": 12, "a": "a"},
        '{"id":2,"year":2}': {"id": 2, "year": 2, "a": "c"},
    }
    assert database.records(TOPIC)[-1][1]["source"]["table"] == "t"
    database.run("TRUNCATE t")
    database.capture("t")
    assert database.table(TOPIC) == {}


def test_masked_columns_stay_masked_when_their_table_is_renamed(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, card text)")
    with database.capturing("t", mask=("t.card",)):
        database.run("INSERT INTO t VALUES (1, '4111')", "ALTER TABLE t RENAME TO u")
        database.run("INSERT INTO u VALUES (2, '4112')")
        wait_until(lambda: len(database.table(TOPIC)) == 2, "both rows")
    assert {row["card"] for row in database.table(TOPIC).values()} == {"****"}


def test_a_renamed_masked_column_stops_the_capture_before_a_value_is_visible(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, card text)")
    database.capture("t", mask=("t.card",))
    capturing = database.capturing("t", mask=("t.card",))
    capturing.__enter__()
    database.run("INSERT INTO t VALUES (1, '4111')", "ALTER TABLE t RENAME card TO number")
    database.run("INSERT INTO t VALUES (2, '4112')")
    wait_until(lambda: database.slot().active_pid is None, "the capture to stop")
    with pytest.raises(CaptureError, match=r"a masked or hashed column of public\.t was renamed"):
        capturing.__exit__(None, None, None)
    database.capture("t", mask=("t.card", "t.number"))
    rows = database.table(TOPIC)
    assert rows == {"1": {"id": 1, "card": "****"}, "2": {"id": 2, "number": "****"}}


def test_a_table_that_is_added_again_gets_a_new_snapshot(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    database.run("INSERT INTO t VALUES (1), (2)")
    database.capture("t", "u")
    database.capture("u")
    database.run("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3)")
    database.capture("t", "u")
    assert sorted(map(str, database.table(TOPIC))) == ["2", "3"]
