"""Tables and types in the catalog of the database, and the preflight checks of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.postgres.pgoutput import Column, RelationMessage
from headrace.capture.postgres.relation import key_columns
from headrace.capture.postgres.values import BUILT_IN, array, text
from headrace.capture.source import PreflightFailed

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from headrace.capture.postgres.values import Converter
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
class CatalogTable:
    """A table in the current catalog."""

    relation: RelationMessage
    """The relation message that pgoutput would send."""
    primary_key: tuple[str, ...]
    may_select: bool
    is_partitioned: bool
    rows: int
    """The estimated number of rows."""

    @property
    def name(self) -> str:
        """The name with its schema."""
        return f"{self.relation.schema}.{self.relation.table}"


class Catalog:
    """Queries the catalog, and caches the converters of types."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._converters: dict[int, Converter | None] = dict(BUILT_IN)

    def tables(self, patterns: tuple[str, ...]) -> dict[str, list[CatalogTable]]:
        """The tables that match each pattern, which may contain `*`."""
        rows = self._connection.execute(TABLES).fetchall()
        return {
            pattern: [self._table(row) for row in rows if fnmatchcase(f"{row[1]}.{row[2]}", pattern)]
            for pattern in patterns
        }

    def partition_roots(self) -> dict[str, str]:
        """The partitioned table of each partition."""
        return dict(self._connection.execute(ROOTS).fetchall())

    def primary_key(self, oid: int) -> tuple[str, ...]:
        """The columns of the current primary key; empty if there is none, or no such table."""
        return tuple(name for name, _, is_key, _ in self._connection.execute(COLUMNS, [oid]) if is_key)

    def converter(self, oid: int) -> Converter | None:
        """The converter from the text of a type to JSON; None if the text is JSON."""
        if oid not in self._converters:
            self._converters[oid] = self._found(oid)
        return self._converters[oid]

    def _found(self, oid: int) -> Converter | None:
        row = self._connection.execute(TYPE, [oid]).fetchone()
        if row is None:
            return text  # the type was dropped
        kind, base, element, length, delimiter = row
        if kind == "d":
            return self.converter(base)
        if kind == "b" and element and length == -1:
            return array(self.converter(element), delimiter.encode())
        return text

    def _table(self, row: tuple[Any, ...]) -> CatalogTable:
        oid, schema, table, identity, may_select, rows, is_partitioned = row
        found = self._connection.execute(COLUMNS, [oid]).fetchall()
        columns = tuple(
            Column(name, type_oid, {"d": in_primary, "i": in_index, "f": True}.get(identity, False))
            for name, type_oid, in_primary, in_index in found
        )
        return CatalogTable(
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


def preflight_server(connection: psycopg.Connection[Any], *, has_slot: bool) -> None:
    """Raise `PreflightFailed` if the server cannot stream changes to this user."""
    row = connection.execute(SERVER).fetchone()
    assert row is not None
    wal_level, version, user, may_replicate, limit, used, _, is_standby = row
    if version < OLDEST:
        raise PreflightFailed(
            f"PostgreSQL {version // 10000} is not supported: version 14 or later is required."
        )
    if wal_level != "logical":
        raise PreflightFailed(
            f"the server's wal_level is {wal_level}, but capture needs logical. As a superuser, run: "
            "ALTER SYSTEM SET wal_level = logical; then restart the server."
        )
    if not may_replicate:
        raise PreflightFailed(
            f"the user {user} lacks the REPLICATION attribute. As a superuser, run: ALTER ROLE {user} "
            "REPLICATION;"
        )
    if is_standby:
        raise PreflightFailed(
            "this server is a standby, where no publication can be created: use the primary."
        )
    if not has_slot and used >= limit:
        raise PreflightFailed(
            f"all {limit} replication slots of the server are in use. Drop an unused one (see "
            "pg_replication_slots), or raise max_replication_slots."
        )


def preflight_tables(catalog: Catalog, settings: CaptureSettings) -> list[CatalogTable]:
    """The tables that match the settings; raises `PreflightFailed` if one cannot be captured."""
    patterns = tuple(dict.fromkeys((*settings.tables, *([settings.outbox] if settings.outbox else []))))
    found = catalog.tables(patterns)
    for pattern, tables in found.items():
        if not tables and (root := catalog.partition_roots().get(pattern)):
            raise PreflightFailed(
                f"{pattern} is a partition: its rows are captured as rows of {root}. Name {root} instead."
            )
        if not tables:
            raise PreflightFailed(
                f"there is no table {pattern} in the database: check its schema and spelling, which is case-"
                "sensitive here."
            )
    tables = list({table.name: table for some in found.values() for table in some}.values())
    for table in tables:
        _check_table(table, is_outbox=table.name == settings.outbox)
    _check_columns(tables, settings)
    return tables


def _check_table(table: CatalogTable, *, is_outbox: bool) -> None:
    if not table.may_select:
        raise PreflightFailed(
            f"this user may not read {table.name}: let its owner run GRANT SELECT ON {table.name}."
        )
    has_identity = table.relation.identity == "f" or any(column.is_key for column in table.relation.columns)
    if not has_identity and not is_outbox:
        raise PreflightFailed(
            f"{table.name} has no primary key and no replica identity, and PostgreSQL would reject every "
            "UPDATE and DELETE on it once it is published. Add a primary key; or run ALTER TABLE "
            f"{table.name} REPLICA IDENTITY FULL (events without keys, to be read as a stream), or REPLICA "
            "IDENTITY USING INDEX with a unique index."
        )


def preflight_masked_columns(
    new_tables: list[CatalogTable], captured: Collection[str], settings: CaptureSettings
) -> None:
    """Raise `PreflightFailed` if a masked or hashed column does not exist in a table without a snapshot.

    In a table that is already captured it may be the earlier name of a column: the WAL may still contain
    changes from before it was renamed or dropped.
    """
    columns = {f"{table.name}.{column.name}" for table in new_tables for column in table.relation.columns}
    for name in (*settings.mask, *settings.hash):
        if name not in columns and name.rpartition(".")[0] not in captured:
            raise PreflightFailed(f"there is no column {name} in the tables that are captured.")


def _check_columns(tables: list[CatalogTable], settings: CaptureSettings) -> None:
    columns = {f"{table.name}.{column.name}" for table in tables for column in table.relation.columns}
    keys = {
        f"{table.name}.{name}"
        for table in tables
        for name in key_columns(table.relation, lambda t=table: t.primary_key)  # type: ignore[misc]  # a default binds the loop's variable
    }
    for name in settings.columns:
        if name not in columns:
            raise PreflightFailed(f"there is no column {name} in the tables that are captured.")
    for name in (*settings.mask, *settings.hash):
        if name in keys:
            raise PreflightFailed(
                f"{name} is part of the key, and cannot be masked or hashed: choose other columns, or "
                "another key."
            )
