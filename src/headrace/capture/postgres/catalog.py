"""What the database's catalog says about tables and types, and the checks before a capture starts."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.errors import UnfitDatabase
from headrace.capture.postgres.pgoutput import Column, RelationMessage
from headrace.capture.postgres.relation import key_of
from headrace.capture.postgres.values import BUILT_IN, array, text

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from headrace.capture.postgres.values import Convert
    from headrace.capture.settings import CaptureSettings

TABLES: Final = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relreplident::text,
       has_table_privilege(c.oid, 'SELECT'), greatest(c.reltuples, 0)::bigint,
       c.relkind = 'p'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY n.nspname, c.relname
"""
COLUMNS: Final = """
SELECT a.attname, a.atttypid::bigint,
       coalesce(a.attnum = ANY (p.indkey), false), coalesce(a.attnum = ANY (i.indkey), false)
FROM pg_attribute a
LEFT JOIN pg_index p ON p.indrelid = a.attrelid AND p.indisprimary
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisreplident
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""
ROOTS: Final = """
SELECT n.nspname || '.' || c.relname, pg_partition_root(c.oid)::regclass::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relispartition
"""
TYPE: Final = """
SELECT typtype::text, typbasetype::bigint, typelem::bigint, typlen, typdelim::text FROM pg_type WHERE oid = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as the catalogue has it now."""

    relation: RelationMessage
    """As the log would describe it."""
    primary_key: tuple[str, ...]
    may_select: bool
    is_partitioned: bool
    rows: int
    """About how many, as of the last ANALYZE."""

    @property
    def name(self) -> str:
        """With its schema."""
        return f"{self.relation.schema}.{self.relation.table}"


class Catalog:
    """Asks over an ordinary connection; types are remembered."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._converters: dict[int, Convert | None] = dict(BUILT_IN)

    def tables(self, patterns: tuple[str, ...]) -> dict[str, list[Table]]:
        """The tables that match each pattern."""
        rows = self._connection.execute(TABLES).fetchall()
        return {
            pattern: [self._table(row) for row in rows if fnmatchcase(f"{row[1]}.{row[2]}", pattern)]
            for pattern in patterns
        }

    def partition_roots(self) -> dict[str, str]:
        """The partitioned table that each partition belongs to."""
        return dict(self._connection.execute(ROOTS).fetchall())

    def primary_key(self, oid: int) -> tuple[str, ...]:
        """The columns of a table's primary key as it is now; none where there is none, or no such table."""
        return tuple(name for name, _, is_key, _ in self._connection.execute(COLUMNS, [oid]) if is_key)

    def converter(self, oid: int) -> Convert | None:
        """What makes JSON of the text of a type."""
        if oid not in self._converters:
            self._converters[oid] = self._found(oid)
        return self._converters[oid]

    def _found(self, oid: int) -> Convert | None:
        row = self._connection.execute(TYPE, [oid]).fetchone()
        if row is None:
            return text  # dropped since
        kind, base, element, length, delimiter = row
        if kind == "d":
            return self.converter(base)
        if kind == "b" and element and length == -1:
            return array(self.converter(element), delimiter.encode())
        return text

    def _table(self, row: tuple[Any, ...]) -> Table:
        oid, schema, table, identity, may_select, rows, is_partitioned = row
        found = self._connection.execute(COLUMNS, [oid]).fetchall()
        columns = tuple(
            Column(name, type_oid, {"d": in_primary, "i": in_index, "f": True}.get(identity, False))
            for name, type_oid, in_primary, in_index in found
        )
        return Table(
            relation=RelationMessage(oid, schema, table, identity, columns),
            primary_key=tuple(name for name, _, in_primary, _ in found if in_primary),
            may_select=may_select,
            is_partitioned=is_partitioned,
            rows=rows,
        )


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
