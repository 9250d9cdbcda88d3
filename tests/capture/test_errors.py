"""Preflight checks, permanent errors and limits: each message says what to do."""

from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from headrace.capture.settings import CaptureSettings
from headrace.capture.source import (
    CaptureError,
    DatabaseUnavailable,
    PreflightFailed,
    SlotInUse,
    SlotLost,
    WalLimitExceeded,
)
from headrace.errors import Misuse
from headrace.testing import broker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database
from tests.cli.terminal import wait_until

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


def test_a_missing_table_is_named(database: Database) -> None:
    with pytest.raises(PreflightFailed, match=r"no table public\.nothing"):
        database.capture("nothing")


def test_a_table_without_a_primary_key_is_rejected(database: Database) -> None:
    database.run("CREATE TABLE t (a int)")
    with pytest.raises(PreflightFailed, match="REPLICA IDENTITY FULL"):
        database.capture("t")
    database.run("INSERT INTO t VALUES (1)", "UPDATE t SET a = 2")  # which a publication would have broken


def test_a_server_without_logical_wal_level_is_rejected(database: Database) -> None:
    with (
        TemporaryDirectory(prefix="headrace-") as folder,
        PostgresServer(Path(folder), settings={"wal_level": "replica"}) as server,
    ):
        settings = Database(server.url(), "postgres", database.bootstrap)
        with pytest.raises(PreflightFailed, match="ALTER SYSTEM SET wal_level = logical"):
            settings.capture("t")
        settings.connection.close()


def test_a_missing_privilege_is_named(database: Database) -> None:
    database.run(TABLE, f"CREATE ROLE {database.name}_reader LOGIN")
    url = database.url.replace("postgres@", f"{database.name}_reader@")
    reader = Database(url, database.name, database.bootstrap)
    with pytest.raises(PreflightFailed, match="REPLICATION"):
        reader.capture("t")
    database.run(f"ALTER ROLE {database.name}_reader REPLICATION")
    with pytest.raises(PreflightFailed, match=r"GRANT SELECT ON public\.t"):
        reader.capture("t")
    database.run(f"GRANT SELECT ON t TO {database.name}_reader")
    with pytest.raises(PreflightFailed, match=r"CREATE PUBLICATION headrace_shop FOR TABLE ONLY public\.t"):
        reader.capture("t")
    database.run("CREATE PUBLICATION headrace_shop FOR TABLE t WITH (publish_via_partition_root = true)")
    database.run("INSERT INTO t VALUES (1)")
    assert reader.capture("t") == 1
    reader.connection.close()


def test_two_captures_of_one_name_exclude_each_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.postgres.source.SLOT_RELEASE_TIMEOUT_S", 0.2)
    database.run(TABLE)
    with database.capturing("t"):
        with pytest.raises(SlotInUse, match="headrace capture stop shop"):
            database.capture("t")
        database.run("INSERT INTO t VALUES (1)")
        wait_until(lambda: list(database.table("shop.public.t")) == ["1"], "the first one to go on")


def test_the_name_of_a_capture_of_another_database_is_rejected(
    database: Database, postgres: PostgresServer
) -> None:
    database.run(TABLE)
    database.capture("t")
    other = Database(postgres.url(), "postgres", database.bootstrap)
    with pytest.raises((CaptureError, PreflightFailed), match=r"another database|no table"):
        other.capture("t")
    other.connection.close()


def test_a_lost_slot_stops_the_capture_until_it_is_dropped(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    wait_until(lambda: database.slot().active_pid is None, "the slot to be left")
    database.run("SELECT pg_drop_replication_slot('headrace_shop')")
    with pytest.raises(SlotLost, match="headrace capture drop shop"):
        database.capture("t")


def test_an_unreachable_database_is_reported_at_once(database: Database) -> None:
    lost = Database.__new__(Database)
    lost.url, lost.bootstrap, lost.messages = "postgres://nobody@127.0.0.1:1/shop", database.bootstrap, []
    with pytest.raises(DatabaseUnavailable, match="does not respond"):
        lost.capture("t")


def test_retained_wal_is_warned_of_and_the_slot_is_dropped_at_the_limit(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    with psycopg.connect(database.url, autocommit=True) as busy:
        busy.execute("CREATE TABLE noise AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 3000)")
    database.capture("t", warn_bytes=1 << 20)
    assert any("MiB of WAL" in text for text in database.messages)
    with psycopg.connect(database.url, autocommit=True) as busy:
        busy.execute("INSERT INTO noise SELECT a FROM noise")
    with pytest.raises(WalLimitExceeded, match="and was dropped"):
        database.capture("t", stop_bytes=1 << 20)
    assert database.slot() is None


def test_the_slot_advances_while_only_other_tables_change(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    database.run("CREATE TABLE noise AS SELECT repeat('x', 1000) AS a FROM generate_series(1, 3000)")
    before = database.slot().lag_bytes
    assert database.capture("t") == 0
    wait_until(lambda: database.slot().lag_bytes < before / 10, "the slot to move on")


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        ("not a database", {"url": "mysql://h/d", "tables": ("t",)}),
        ("no tables", {"url": "postgres://h/d", "tables": ()}),
        ("not the name of a table", {"url": "postgres://h/d", "tables": ("a.b.c",)}),
        ("cannot be a prefix", {"url": "postgres://h/d", "tables": ("t",), "name": "a/b"}),
        (
            "masked and hashed",
            {"url": "postgres://h/d", "tables": ("t",), "mask": ("t.a",), "hash": ("t.a",)},
        ),
    ],
)
def test_invalid_settings_are_rejected(problem: str, settings: dict[str, object]) -> None:
    with pytest.raises(Misuse, match=problem):
        CaptureSettings(**settings)  # type: ignore[arg-type]


def test_a_password_is_not_printed() -> None:
    settings = CaptureSettings(
        url="postgres://ann:secret@h:5432/shop?sslmode=require", tables=("t",), salt="s3"
    )
    assert "secret" not in repr(settings) + settings.address
    assert "s3" not in repr(settings)


def test_a_row_above_the_record_limit_stops_the_capture_until_its_column_is_excluded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.capture.source.LARGEST_RECORD", 1 << 20)
    database.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    database.capture("t")
    database.run("INSERT INTO t VALUES (7, repeat('x', 1100000))", "INSERT INTO t VALUES (8, 'y')")
    with pytest.raises(
        CaptureError, match=r"for the topic 'shop\.public\.t', of the key '7', is larger than"
    ):
        database.capture("t")
    assert database.table("shop.public.t") == {}
    assert database.capture("t", columns=("t.id",)) == 2
    assert database.table("shop.public.t") == {"7": {"id": 7}, "8": {"id": 8}}


def test_an_incomplete_publication_is_altered(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t DEFAULT",
    )
    database.run("CREATE PUBLICATION headrace_shop FOR TABLE t WITH (publish = 'insert')")
    database.capture("t")
    database.run("INSERT INTO t VALUES (1), (2)", "DELETE FROM t WHERE id = 1")
    database.capture("t")
    assert list(database.table("shop.public.t")) == ["2"]


def test_a_partition_is_captured_as_its_partitioned_table(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t DEFAULT",
    )
    with pytest.raises(PreflightFailed, match=r"public\.t_1 is a partition.*Name t instead"):
        database.capture("t_1")


def test_a_slot_of_another_broker_is_not_used(database: Database) -> None:
    database.run(TABLE)
    database.capture("t")
    with broker() as other:
        elsewhere = Database(database.url, database.name, other.bootstrap)
        with pytest.raises(CaptureError, match="unknown to this broker"):
            elsewhere.capture("t")
        elsewhere.connection.close()
    database.run("INSERT INTO t VALUES (1)")
    assert database.capture("t") == 1
