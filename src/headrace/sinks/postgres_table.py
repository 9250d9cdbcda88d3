"""The target table in PostgreSQL: created if it is missing, extended by missing columns, or checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from psycopg import sql

from headrace.sinks.postgres_copy import is_binary_compatible, is_compatible, sql_type
from headrace.sinks.sink import IncompatibleTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

MARKERS: Final = "headrace_batch_markers"
"""The table of batch markers, in the schema of the target table."""
FILLFACTOR: Final = 50
_PREPARING: Final = 5_283_716_204_417_113_001
"""The advisory lock for creating and altering tables, so that two jobs do not do it concurrently."""

_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '',
           coalesce((SELECT collisdeterministic FROM pg_collation c WHERE c.oid = attcollation), true)
    FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
_UNIQUE: Final = """
    SELECT array(
        SELECT attname::text FROM pg_attribute
        WHERE attrelid = indrelid AND attnum = ANY ((indkey::int2[])[0:indnkeyatts - 1])
    ), indimmediate
    FROM pg_index
    WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
"""


@dataclass(frozen=True, slots=True)
class _Column:
    kind: str
    is_required: bool
    is_deterministic: bool
    """Whether the collation is deterministic: equal strings have equal bytes."""

    def is_exact(self, kind: pa.DataType) -> bool:
        """Whether different values in Arrow are always different in the column."""
        is_same = is_binary_compatible(kind, self.kind) and not pa.types.is_floating(kind)
        return is_same and "(" not in self.kind and self.is_deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTable:
    """The table that the rows need."""

    table: str
    key: tuple[str, ...]
    """The key columns; empty in append mode."""
    columns: Mapping[str, pa.DataType]

    @property
    def name(self) -> sql.Identifier:
        """The table's name in SQL."""
        return sql.Identifier(*self.table.split("."))

    @property
    def markers(self) -> sql.Identifier:
        """The name of the table of batch markers."""
        return sql.Identifier(*self.table.split(".")[:-1], MARKERS)

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Create or extend the table; raises `IncompatibleTarget` if it cannot hold the rows."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARING])
            self._create_markers(connection)
            found = self._read_columns(connection)
            if not found:
                self._create(connection)
                return
            self._check_columns(found)
            self._check_key(connection)
            self._add_columns([name for name in self.columns if name not in found], connection)

    def takes_binary(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the existing table has the types of COPY's binary format for all columns."""
        found = self._read_columns(connection)
        return all(is_binary_compatible(kind, found[name].kind) for name, kind in self.columns.items())

    def has_exact_key(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether different keys in Arrow are different in the existing table."""
        found = self._read_columns(connection)
        return all(found[name].is_exact(self.columns[name]) for name in self.key)

    def _create_markers(self, connection: psycopg.Connection[Any]) -> None:
        if is_existing(self.markers, connection):
            return  # needs no privilege to create tables if it exists
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} (job text, target text, generation bigint NOT NULL, batch bigint NOT NULL, "
                "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, target))"
            ).format(self.markers)
        )

    def _read_columns(self, connection: psycopg.Connection[Any]) -> dict[str, _Column]:
        rows = connection.execute(_COLUMNS, [self.name.as_string(connection)]).fetchall()
        return {name: _Column(*facts) for name, *facts in rows}

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        parts = [_column_definition(name, kind) for name, kind in self.columns.items()]
        if self.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(listed(self.key)))
        statement = sql.SQL("CREATE TABLE {} ({})").format(self.name, sql.SQL(", ").join(parts))
        # Free space in each page allows heap-only updates, without a new index entry. With less of it, merges
        # take longer and the table grows more.
        room = sql.SQL(" WITH (fillfactor = {})").format(sql.Literal(FILLFACTOR))
        connection.execute(statement + room if self.key else statement)

    def _add_columns(self, missing: Sequence[str], connection: psycopg.Connection[Any]) -> None:
        if missing:
            parts = [
                sql.SQL("ADD COLUMN {}").format(_column_definition(name, self.columns[name]))
                for name in missing
            ]
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(self.name, sql.SQL(", ").join(parts)))

    def _check_columns(self, found: Mapping[str, _Column]) -> None:
        wrong = [
            f"its column {name} is of type {found[name].kind}, and the rows have {sql_type(kind)}"
            for name, kind in self.columns.items()
            if name in found and not is_compatible(kind, found[name].kind)
        ]
        wrong += [f"its key has no column {name}" for name in self.key if name not in found]
        wrong += [
            f"its column {name} is NOT NULL without a default, and the rows do not have it"
            for name, column in found.items()
            if column.is_required and name not in self.columns
        ]
        if wrong:
            raise IncompatibleTarget(
                f"the table {self.table!r} in PostgreSQL cannot hold the job's rows: {'; '.join(wrong)}. "
                "Change the table (ALTER TABLE), cast or rename the columns in the job, or use another "
                "table, which is created for the rows. Nothing was written."
            )

    def _check_key(self, connection: psycopg.Connection[Any]) -> None:
        if not self.key:
            return
        unique = connection.execute(_UNIQUE, [self.name.as_string(connection)]).fetchall()
        matching = [is_immediate for columns, is_immediate in unique if set(columns) == set(self.key)]
        columns = ", ".join(self.key)
        if not matching:
            raise IncompatibleTarget(
                f"the table {self.table!r} in PostgreSQL has no unique index on the key ({columns}): run "
                f"CREATE UNIQUE INDEX ON {self.table} ({columns}), or use the key of the table. Nothing was "
                "written."
            )
        if not all(matching):
            raise IncompatibleTarget(
                f"the unique constraint on ({columns}) of the table {self.table!r} in PostgreSQL is "
                "DEFERRABLE, and INSERT … ON CONFLICT does not support that: drop the constraint and create "
                "it as NOT DEFERRABLE. Nothing was written."
            )


def listed(names: Sequence[str]) -> sql.Composed:
    """Column names separated by commas."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _column_definition(name: str, kind: pa.DataType) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(sql_type(kind)))


def is_existing(table: sql.Identifier, connection: psycopg.Connection[Any]) -> bool:
    """Whether there is a table of that name."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table.as_string(connection)]).fetchone()
    return row is not None and bool(row[0])
