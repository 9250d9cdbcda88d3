"""The same SQL by Debezium's connector and by Headrace: envelopes differ only in what is listed here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.testing import broker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database
from tests.cli.terminal import wait_until

TYPES = {
    "c_smallint": ("smallint", "-7"),
    "c_int": ("integer", "2147483647"),
    "c_bigint": ("bigint", "9223372036854775807"),
    "c_oid": ("oid", "4294967295"),
    "c_bool": ("boolean", "true"),
    "c_real": ("real", "1.5"),
    "c_double": ("double precision", "0.1"),
    "c_nan": ("double precision", "'NaN'"),
    "c_numeric": ("numeric(10,2)", "12.50"),
    "c_free": ("numeric", "123456789012345678901234567890.125"),
    "c_money": ("money", "'12.50'"),
    "c_text": ("text", "'a\"b\\ü\n€'"),
    "c_varchar": ("varchar(9)", "'tea'"),
    "c_char": ("char(5)", "'tea'"),
    "c_name": ("name", "'tea'"),
    "c_bytea": ("bytea", "'\\x00ff10'"),
    "c_date": ("date", "'2026-01-02'"),
    "c_time": ("time", "'03:04:05.678901'"),
    "c_timetz": ("timetz", "'03:04:05+02'"),
    "c_timestamp": ("timestamp", "'2026-01-02 03:04:05.5'"),
    "c_timestamptz": ("timestamptz", "'2026-01-02 03:04:05.678901+02'"),
    "c_seconds": ("timestamptz(0)", "'2026-01-02 03:04:05+02'"),
    "c_infinity": ("timestamptz", "'infinity'"),
    "c_interval": ("interval", "'1 year 2 months 3 days 04:05:06.5'"),
    "c_uuid": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    "c_json": ("json", '\'{"b": 1,  "a": [1, 2]}\''),
    "c_jsonb": ("jsonb", '\'{"b": 1, "a": [1, 2]}\''),
    "c_xml": ("text", "'<a/>'"),
    "c_inet": ("inet", "'10.0.0.1/24'"),
    "c_cidr": ("cidr", "'10.0.0.0/8'"),
    "c_mac": ("macaddr", "'08:00:2b:01:02:03'"),
    "c_bit": ("bit(3)", "B'101'"),
    "c_one_bit": ("bit(1)", "B'1'"),
    "c_varbit": ("varbit(8)", "B'1011'"),
    "c_enum": ("mood", "'happy'"),
    "c_domain": ("positive", "5"),
    "c_range": ("int4range", "'[1,5)'"),
    "c_tsrange": ("tstzrange", "'[2026-01-01 00:00+00,2026-01-02 00:00+00)'"),
    "c_point": ("point", "'(1,2)'"),
    "c_ints": ("integer[]", "'{1,NULL,3}'"),
    "c_texts": ("text[]", "'{a,\"b c\",NULL}'"),
    "c_matrix": ("integer[]", "'{{1,2},{3,4}}'"),
    "c_dates": ("date[]", "'{2026-01-02}'"),
    "c_pair": ("pair", "'(1,tea)'"),
    "c_vector": ("tsvector", "'a fat cat'"),
}
BEFORE = f"""
CREATE TYPE mood AS ENUM ('happy', 'sad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TABLE types (id int PRIMARY KEY, {", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())});
INSERT INTO types VALUES (1, {", ".join(value for _, value in TYPES.values())});
INSERT INTO types VALUES (2);
CREATE TABLE big (id int PRIMARY KEY, a text, b int);
ALTER TABLE big ALTER a SET STORAGE EXTERNAL;
INSERT INTO big VALUES (1, repeat('x', 9000), 0);
CREATE TABLE whole (id int PRIMARY KEY, a text, b int);
ALTER TABLE whole ALTER a SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
INSERT INTO whole VALUES (1, repeat('x', 9000), 0);
CREATE TABLE large_key (k text, part int, a int, PRIMARY KEY (k, part));
ALTER TABLE large_key ALTER k SET STORAGE EXTERNAL;
INSERT INTO large_key VALUES (repeat('k', 2500), 1, 0);
CREATE TABLE altered (id int PRIMARY KEY, a text);
INSERT INTO altered VALUES (1, 'x');
CREATE TABLE emptied (id int PRIMARY KEY);
INSERT INTO emptied VALUES (1), (2);
CREATE TABLE keys (a int, b int, c text, PRIMARY KEY (a, b));
INSERT INTO keys VALUES (1, 1, 'x'), (2, 2, 'y');
CREATE TABLE parted (id int, year int, a text, PRIMARY KEY (id, year)) PARTITION BY RANGE (year);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (10) TO (20);
INSERT INTO parted VALUES (1, 1, 'x');
CREATE TABLE done (id int PRIMARY KEY);
"""
CHANGES = [
    f"INSERT INTO types VALUES (3, {', '.join(value for _, value in TYPES.values())})",
    "INSERT INTO types VALUES (4)",
    "UPDATE types SET c_text = 'new', c_ints = NULL WHERE id = 3",
    "DELETE FROM types WHERE id = 1",
    "UPDATE big SET b = 1",
    "UPDATE whole SET b = 1",
    "DELETE FROM whole",
    "UPDATE large_key SET a = 1",
    "DELETE FROM large_key",
    "INSERT INTO altered VALUES (2, 'y')",
    "ALTER TABLE altered ADD c boolean DEFAULT true",
    "INSERT INTO altered VALUES (3, 'z')",
    "ALTER TABLE altered RENAME a TO name",
    "INSERT INTO altered VALUES (4, 'w')",
    "ALTER TABLE altered ADD d int, DROP c",
    "INSERT INTO altered VALUES (5, 'v', 5)",
    "ALTER TABLE altered ALTER d TYPE text",
    "UPDATE altered SET d = 'six' WHERE id = 5",
    "INSERT INTO emptied VALUES (3)",
    "TRUNCATE emptied",
    "INSERT INTO emptied VALUES (4)",
    "UPDATE keys SET b = 5 WHERE a = 1",
    "UPDATE keys SET c = 'z' WHERE a = 2",
    "DELETE FROM keys",
    "INSERT INTO parted VALUES (2, 12, 'y')",
    "UPDATE parted SET a = 'z' WHERE id = 1",
    "UPDATE parted SET year = 13 WHERE id = 1",
    "DELETE FROM parted WHERE id = 2",
    "INSERT INTO done VALUES (1)",
]
TABLES = ("types", "big", "whole", "large_key", "altered", "emptied", "keys", "parted", "done")
SNAPSHOT_ROWS = 11
DIFFERENT_VALUES = {
    "c_date": ("2026-01-02", "2026-01-02Z"),
    "c_dates": (["2026-01-02"], ["2026-01-02Z"]),
    "c_time": ("03:04:05.678901", "03:04:05.678901Z"),
    "c_timetz": ("03:04:05+02", "01:04:05Z"),
    "c_timestamp": ("2026-01-02T03:04:05.5", "2026-01-02T03:04:05.5Z"),
    "c_bit": ("101", "BQ=="),
    "c_one_bit": ("1", True),
    "c_varbit": ("1011", "Cw=="),
    "c_point": ("(1,2)", {"x": 1.0, "y": 2.0, "wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": None}),
    "c_matrix": ([[1, 2], [3, 4]], [None, None]),
    "c_pair": ("(1,tea)", "KDEsdGVhKQ=="),
}
"""Headrace's and Debezium's; docs/capture.md lists them."""
CHANGE_FIELDS = ("snapshot", "lsn", "txId", "ts_ms")
MISSING_IN_SOURCE = {"sequence", "ts_us", "ts_ns", "xmin", "origin", "origin_lsn"}
Event = tuple[Any, Any]
Captured = tuple[dict[str, list[Event]], dict[str, list[Event]]]


@pytest.fixture(scope="module")
def captured() -> Iterator[Captured]:
    """The events of each table, Headrace's and Debezium's."""
    with (
        TemporaryDirectory(prefix="headrace-") as folder,
        PostgresServer(Path(folder), tcp=True) as server,
        broker() as log,
    ):
        database = Database(server.create_database("shop"), "shop", log.bootstrap)
        database.connection.execute(BEFORE)
        with _debezium(database.url, Path(folder)) as events:
            database.capture(*TABLES)
            wait_until(lambda: len(_read(events)) >= SNAPSHOT_ROWS, "Debezium's snapshot", deadline_s=90)
            for change in CHANGES:
                if change.startswith("ALTER"):
                    # Debezium may read the catalogue where the log means an older version of the table.
                    written = database.rows("altered")
                    wait_until(lambda rows=written: _knows(events, rows[-1][0]), "Debezium")
                database.run(change)
            database.capture(*TABLES)
            wait_until(lambda: ".done" in events.read_text(), "Debezium's last event", deadline_s=90)
            lines = _read(events)
        ours = {table: database.records(f"shop.public.{table}") for table in TABLES}
        theirs = {
            table: [(key, value) for topic, key, value in lines if topic == f"shop.public.{table}"]
            for table in TABLES
        }
        database.close()
        yield ours, theirs


@contextmanager
def _debezium(url: str, folder: Path) -> Iterator[Path]:
    """Runs Debezium's connector during the block; returns the file with its events."""
    events = folder / "debezium.events"
    events.touch()
    command = [sys.executable, "-m", "tests.capture.debezium", str(events)]
    with (folder / "debezium.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,  # Debezium's engine writes logs/ to its working directory
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
        )
    try:
        assert process.stdin is not None
        with process.stdin as stdin:
            stdin.write(json.dumps(_properties(url, folder)).encode())
        yield events
    finally:
        process.kill()
        process.wait()


def _knows(events: Path, row: int) -> bool:
    """Whether Debezium has written the row of the altered table."""
    return any(topic == "shop.public.altered" and key == {"id": row} for topic, key, _ in _read(events))


def _read(events: Path) -> list[Any]:
    """The events that were written so far; a line that is not yet whole is left out."""
    return [json.loads(line) for line in events.read_text().split("\n")[:-1]]


def _properties(url: str, folder: Path) -> dict[str, str]:
    """The options with which Debezium's values are closest to Headrace's."""
    parts = urlsplit(url)
    return {
        "name": "shop",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": parts.hostname or "",
        "database.port": str(parts.port),
        "database.user": parts.username or "",
        "database.password": parts.password or "",
        "database.dbname": "shop",
        "topic.prefix": "shop",
        "slot.name": "debezium",
        "publication.name": "debezium",
        "publication.autocreate.mode": "filtered",
        "publish.via.partition.root": "true",
        "table.include.list": ",".join(f"public.{table}" for table in TABLES),
        "snapshot.mode": "initial",
        "skipped.operations": "none",
        "include.unknown.datatypes": "true",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64",
        "interval.handling.mode": "string",
        "time.precision.mode": "isostring",
        "unavailable.value.placeholder": "__headrace_unavailable_value",
        "converter.schemas.enable": "false",
        "poll.interval.ms": "10",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "debezium.offsets"),
    }


def test_values_equal_debeziums_except_for_the_listed_differences(captured: Captured) -> None:
    ours, theirs = captured
    compared = 0
    for (_, mine), (_, other) in zip(ours["types"], theirs["types"], strict=True):
        if mine is None or mine["after"] is None or mine["after"]["c_int"] is None:
            continue
        found = {name: (mine["after"][name], other["after"][name]) for name in TYPES}
        if mine["op"] == "u":
            assert found.pop("c_ints") == (None, None)
        assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == DIFFERENT_VALUES
        compared += 1
    assert compared == 3  # of the snapshot, of the insert, of the update


@pytest.mark.parametrize("table", [table for table in TABLES if table not in ("types", "emptied")])
def test_events_equal_debeziums_in_order_operation_and_rows(captured: Captured, table: str) -> None:
    ours, theirs = captured
    assert [_comparable(event) for event in ours[table]] == [_comparable(event) for event in theirs[table]]
    for (key, _), (other, _) in zip(ours[table], theirs[table], strict=True):
        # The one difference of keys: the text of one column instead of a document.
        assert other == (
            json.loads(key) if len(other) > 1 else {**other, min(other): type(other[min(other)])(key)}
        )


def test_a_truncate_is_an_event_for_each_row(captured: Captured) -> None:
    ours, theirs = captured
    assert [value["op"] for _, value in theirs["emptied"]] == ["r", "r", "c", "t", "c"]
    assert [(key, value and value["op"]) for key, value in ours["emptied"]] == [
        *(("1", "r"), ("2", "r"), ("3", "c")),
        *(("1", "t"), ("1", None), ("2", "t"), ("2", None), ("3", "t"), ("3", None)),
        ("4", "c"),
    ]


def test_the_source_of_a_change_equals_debeziums(captured: Captured) -> None:
    ours, theirs = captured
    for table in TABLES:
        if table == "emptied":
            continue
        for (_, mine), (_, other) in zip(ours[table], theirs[table], strict=True):
            if mine is None:
                continue
            assert set(other) - set(mine) == {"transaction", "ts_us", "ts_ns"}
            assert set(other["source"]) - set(mine["source"]) == MISSING_IN_SOURCE
            is_snapshot = mine["op"] == "r"
            same = ("connector", "name", "db", "schema", "table", *(() if is_snapshot else CHANGE_FIELDS))
            assert [mine["source"][name] for name in same] == [other["source"][name] for name in same]


def _comparable(event: Event) -> Any:
    """Operation and rows; Debezium fills up a key in `before` with nulls."""
    _, value = event
    if value is None:
        return None
    before = value["before"]
    return (
        value["op"],
        before and {name: part for name, part in before.items() if part is not None},
        value["after"],
    )
