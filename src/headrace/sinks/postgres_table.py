"""The table that rows go to: made where it is missing, given the columns that it lacks, else compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from psycopg import sql

from headrace.sinks.postgres_copy import is_binary, is_suitable, sql_type
from headrace.sinks.sink import Unsuitable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

MARKS: Final = "headrace_marks"
"""The table, in the schema of the rows' own, that says which batch of which job is there."""
FILLFACTOR: Final = 50
_PREPARING: Final = 5_283_716_204_417_113_001
"""The advisory lock under which tables are made: two jobs that make one at once would disturb each other."""

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
    must_be_given: bool
    is_deterministic: bool
    """Whether texts are equal only if their bytes are."""

    def is_exact(self, kind: pa.DataType) -> bool:
        """Whether values that differ for Arrow always differ in the column: nothing is rounded or folded."""
        is_same = is_binary(kind, self.kind) and not pa.types.is_floating(kind)
        return is_same and "(" not in self.kind and self.is_deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table as the rows want it."""

    table: str
    key: tuple[str, ...]
    """The columns by which rows replace one another; none where they are added."""
    columns: Mapping[str, pa.DataType]

    @property
    def name(self) -> sql.Identifier:
        """The table's name in SQL."""
        return sql.Identifier(*self.table.split("."))

    @property
    def marks(self) -> sql.Identifier:
        """The name of the table of marks beside it."""
        return sql.Identifier(*self.table.split(".")[:-1], MARKS)

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Have the table there as it is needed; `Unsuitable` where it is another one."""
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_PREPARING])
            self._make_marks(connection)
            found = self._found(connection)
            if not found:
                self._create(connection)
                return
            self._check(found)
            self._check_key(connection)
            self._add([name for name in self.columns if name not in found], connection)

    def takes_binary(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the columns of the table, which is there, hold just what Arrow has."""
        found = self._found(connection)
        return all(is_binary(kind, found[name].kind) for name, kind in self.columns.items())

    def has_exact_key(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether keys that differ for Arrow differ for the table, which is there, too."""
        found = self._found(connection)
        return all(found[name].is_exact(self.columns[name]) for name in self.key)

    def _make_marks(self, connection: psycopg.Connection[Any]) -> None:
        if _exists(self.marks, connection):
            return  # so that no right to make tables is needed where it is there
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} (job text, target text, generation bigint NOT NULL, batch bigint NOT NULL, "
                "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (job, target))"
            ).format(self.marks)
        )

    def _found(self, connection: psycopg.Connection[Any]) -> dict[str, _Column]:
        rows = connection.execute(_COLUMNS, [self.name.as_string(connection)]).fetchall()
        return {name: _Column(*facts) for name, *facts in rows}

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        parts = [_defined(name, kind) for name, kind in self.columns.items()]
        if self.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(listed(self.key)))
        statement = sql.SQL("CREATE TABLE {} ({})").format(self.name, sql.SQL(", ").join(parts))
        # Room in each page lets a row be replaced where it is, without a new entry in the index. With too
        # little of it merges take longer, and the table grows beyond what the room takes.
        room = sql.SQL(" WITH (fillfactor = {})").format(sql.Literal(FILLFACTOR))
        connection.execute(statement + room if self.key else statement)

    def _add(self, missing: Sequence[str], connection: psycopg.Connection[Any]) -> None:
        if missing:
            parts = [sql.SQL("ADD COLUMN {}").format(_defined(name, self.columns[name])) for name in missing]
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(self.name, sql.SQL(", ").join(parts)))

    def _check(self, found: Mapping[str, _Column]) -> None:
        wrong = [
            f"its column {name} is of type {found[name].kind}, and the rows have {sql_type(kind)}"
            for name, kind in self.columns.items()
            if name in found and not is_suitable(kind, found[name].kind)
        ]
        wrong += [f"its key has no column {name}" for name in self.key if name not in found]
        wrong += [
            f"its column {name} must not be null and has no default, and the rows do not have it"
            for name, column in found.items()
            if column.must_be_given and name not in self.columns
        ]
        if wrong:
            raise Unsuitable(
                f"the table {self.table!r} of PostgreSQL cannot take the job's rows: {'; '.join(wrong)}. "
                "Change the table (ALTER TABLE), cast or rename the columns in the job, or name another "
                "table, which is then made as the rows are. Nothing was written."
            )

    def _check_key(self, connection: psycopg.Connection[Any]) -> None:
        if not self.key:
            return
        unique = connection.execute(_UNIQUE, [self.name.as_string(connection)]).fetchall()
        matching = [is_immediate for columns, is_immediate in unique if set(columns) == set(self.key)]
        columns = ", ".join(self.key)
        if not matching:
            raise Unsuitable(
                f"the table {self.table!r} of PostgreSQL has no unique index on ({columns}), by which rows "
                f"replace one another: CREATE UNIQUE INDEX ON {self.table} ({columns}), or give the output "
                "the key that the table has. Nothing was written."
            )
        if not all(matching):
            raise Unsuitable(
                f"the unique constraint on ({columns}) of the table {self.table!r} of PostgreSQL is "
                "DEFERRABLE, and INSERT … ON CONFLICT does not support that: drop the constraint and create "
                "it as NOT DEFERRABLE. Nothing was written."
            )


def listed(names: Sequence[str]) -> sql.Composed:
    """Names of columns with commas between."""
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _defined(name: str, kind: pa.DataType) -> sql.Composed:
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(sql_type(kind)))


def _exists(table: sql.Identifier, connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [table.as_string(connection)]).fetchone()
    return row is not None and bool(row[0])
