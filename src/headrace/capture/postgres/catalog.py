"""What the database says about itself: tables with their columns and keys, types, settings and privileges."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.postgres.pgoutput import Column, RelationMessage
from headrace.capture.postgres.values import BUILT_IN, array, text

if TYPE_CHECKING:
    import psycopg

    from headrace.capture.postgres.values import Convert

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
