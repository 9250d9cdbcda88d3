"""Whether a database and its tables can be captured; if not, what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.capture.errors import UnfitDatabase
from headrace.capture.postgres.relation import key_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from headrace.capture.postgres.catalog import Catalog, Table
    from headrace.capture.settings import CaptureSettings

SERVER: Final = """
SELECT current_setting('wal_level'), current_setting('server_version_num')::int, current_user::text,
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)::int,
       current_setting('max_slot_wal_keep_size'), pg_is_in_recovery()
"""
OLDEST: Final = 140000


def check_server(connection: psycopg.Connection[Any], *, has_slot: bool) -> None:
    """Refuse a server that cannot send its changes to this user."""
    row = connection.execute(SERVER).fetchone()
    assert row is not None
    wal_level, version, user, may_replicate, most, taken, _, is_standby = row
    if version < OLDEST:
        raise UnfitDatabase(f"PostgreSQL {version // 10000} is too old to be captured: 14 is the oldest.")
    if wal_level != "logical":
        raise UnfitDatabase(
            f"the server's wal_level is {wal_level}, and its log lacks what capture needs. As a superuser: "
            "ALTER SYSTEM SET wal_level = logical; and then restart the server."
        )
    if not may_replicate:
        raise UnfitDatabase(
            f"the user {user} may not replicate. As a superuser: ALTER ROLE {user} REPLICATION;"
        )
    if is_standby:
        raise UnfitDatabase("this server is a standby, on which no publication can be made: use its primary.")
    if not has_slot and taken >= most:
        raise UnfitDatabase(
            f"all {most} replication slots of the server are taken. Drop one that nobody reads (they are in "
            "pg_replication_slots), or raise max_replication_slots."
        )


def chosen_tables(catalog: Catalog, settings: CaptureSettings) -> list[Table]:
    """The tables that are meant, each of which can be captured."""
    patterns = tuple(dict.fromkeys((*settings.tables, *([settings.outbox] if settings.outbox else []))))
    found = catalog.tables(patterns)
    for pattern, tables in found.items():
        if not tables and (root := catalog.partition_roots().get(pattern)):
            raise UnfitDatabase(
                f"{pattern} is a partition, whose rows are captured as rows of {root}: name {root} instead."
            )
        if not tables:
            raise UnfitDatabase(
                f"there is no table {pattern} in the database: check its schema and spelling, which is case-"
                "sensitive here."
            )
    tables = list({table.name: table for some in found.values() for table in some}.values())
    for table in tables:
        _check_table(table, is_outbox=table.name == settings.outbox)
    _check_columns(tables, settings)
    return tables


def _check_table(table: Table, *, is_outbox: bool) -> None:
    if not table.may_select:
        raise UnfitDatabase(
            f"this user may not read {table.name}: have its owner GRANT SELECT ON {table.name}."
        )
    has_identity = table.relation.identity == "f" or any(column.is_key for column in table.relation.columns)
    if not has_identity and not is_outbox:
        raise UnfitDatabase(
            f"{table.name} has no primary key that its changes could be told by, and PostgreSQL would refuse "
            "every UPDATE and DELETE on it as soon as it is published. Give it one; or ALTER TABLE "
            f"{table.name} REPLICA IDENTITY FULL (events without keys, to be read as a stream); or REPLICA "
            "IDENTITY USING INDEX a unique one."
        )


def check_hidden(new_tables: list[Table], captured: Collection[str], settings: CaptureSettings) -> None:
    """Refuse the name of a column to hide that is in no table of which a snapshot is to be taken.

    In a table that is captured already it may be the name of a column before it was renamed or dropped: the
    log may still have changes of that time.
    """
    columns = {f"{table.name}.{column.name}" for table in new_tables for column in table.relation.columns}
    for name in (*settings.mask, *settings.hash):
        if name not in columns and name.rpartition(".")[0] not in captured:
            raise UnfitDatabase(f"there is no column {name} in the tables that are captured.")


def _check_columns(tables: list[Table], settings: CaptureSettings) -> None:
    columns = {f"{table.name}.{column.name}" for table in tables for column in table.relation.columns}
    keys = {
        f"{table.name}.{name}"
        for table in tables
        for name in key_of(table.relation, lambda t=table: t.primary_key)  # type: ignore[misc]  # a default binds the loop's variable
    }
    for name in settings.columns:
        if name not in columns:
            raise UnfitDatabase(f"there is no column {name} in the tables that are captured.")
    for name in (*settings.mask, *settings.hash):
        if name in keys:
            raise UnfitDatabase(
                f"{name} is part of the key by which rows are told apart, and cannot be hidden: mask other "
                "columns, or capture a table with another key."
            )
