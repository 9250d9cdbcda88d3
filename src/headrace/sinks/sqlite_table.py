"""A table of SQLite's for rows: made where it is missing, given the columns that it lacks, else compared."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.sinks.errors import Unsuitable
from headrace.sinks.rows import json_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FLEXIBLE: Final = ("BLOB", "NUMERIC")
"""The affinities of columns that take what they are given; a column without type has the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table as the rows want it."""

    table: str
    key: tuple[str, ...]
    columns: Mapping[str, pa.DataType]

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Have the table there as it is needed; `Unsuitable` where it is another one."""
        found = connection.execute(f"PRAGMA table_info({quoted(self.table)})").fetchall()
        if found:
            self._check(found)
            self._check_key(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS headrace_marks (job TEXT, target TEXT, generation INTEGER NOT NULL, "
            "batch INTEGER NOT NULL, PRIMARY KEY (job, target))"
        )
        names = {name for _, name, *_ in found}
        if not found:
            key = f", PRIMARY KEY ({listed(self.key)})" if self.key else ""
            parts = ", ".join(self._defined(name, kind) for name, kind in self.columns.items())
            connection.execute(f"CREATE TABLE {quoted(self.table)} ({parts}{key})")
        for name in [name for name in self.columns if found and name not in names]:
            kind = type_of(self.columns[name])
            connection.execute(f"ALTER TABLE {quoted(self.table)} ADD COLUMN {quoted(name)} {kind}")

    def has_rowids(self, connection: sqlite3.Connection) -> bool:
        """Whether the table, which exists, has rowids: not if it was created WITHOUT ROWID."""
        try:
            connection.execute(f"SELECT rowid FROM {quoted(self.table)} LIMIT 0")  # noqa: S608  quoted
        except sqlite3.OperationalError:
            return False
        return True

    def _defined(self, name: str, kind: pa.DataType) -> str:
        # SQLite lets a primary key be null, and each such row would be another one.
        return f"{quoted(name)} {type_of(kind)}{' NOT NULL' if name in self.key else ''}"

    def _check(self, found: Sequence[tuple[Any, ...]]) -> None:
        kinds = {name: kind for _, name, kind, *_ in found}
        wrong = [
            f"its column {name} is of type {kinds[name]}, and the rows have {type_of(kind)}"
            for name, kind in self.columns.items()
            if name in kinds and not _fits(type_of(kind), _affinity(kinds[name]))
        ]
        wrong += [f"its key has no column {name}" for name in self.key if name not in kinds]
        wrong += [
            f"its column {name} must not be null and has no default, and the rows do not have it"
            for _, name, _, must, default, _ in found
            if must and default is None and name not in self.columns
        ]
        if wrong:
            raise Unsuitable(
                f"the table {self.table!r} of SQLite cannot take the job's rows: {'; '.join(wrong)}. Change "
                "the table, cast or rename the columns in the job, or name another table, which is then made "
                "as the rows are. Nothing was written."
            )

    def _check_key(self, connection: sqlite3.Connection) -> None:
        if not self.key:
            return
        described = connection.execute(f"PRAGMA table_info({quoted(self.table)})").fetchall()
        unique = [{row[1] for row in described if row[5]}]
        for _, index, is_unique, _, is_partial in connection.execute(
            f"PRAGMA index_list({quoted(self.table)})"
        ).fetchall():
            if is_unique and not is_partial:
                columns = connection.execute(f"PRAGMA index_info({quoted(index)})").fetchall()
                unique.append({column for _, _, column in columns})
        if set(self.key) not in unique:
            columns_text = ", ".join(self.key)
            raise Unsuitable(
                f"the table {self.table!r} of SQLite has no unique index on ({columns_text}), by which rows "
                f"replace one another: CREATE UNIQUE INDEX … ON {self.table} ({columns_text}), or give the "
                "output the key that the table has. Nothing was written."
            )


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as SQLite stores them."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else json_of(value) for value in values]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return [None if value is None else value.isoformat() for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    if pa.types.is_duration(kind):
        return [None if value is None else value.total_seconds() for value in values]
    return values


def type_of(kind: pa.DataType) -> str:
    """The type of a column that is made for values of an Arrow type.

    >>> [type_of(kind) for kind in (pa.int64(), pa.bool_(), pa.float32(), pa.binary(), pa.date32())]
    ['INTEGER', 'INTEGER', 'REAL', 'BLOB', 'TEXT']
    """
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_duration(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _affinity(declared: str) -> str:
    """What SQLite makes of the declared type of a column, by its own rules."""
    text = declared.upper()
    rules = {"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"}
    rules |= {"REAL": "REAL", "FLOA": "REAL", "DOUB": "REAL"}
    return next((kind for part, kind in rules.items() if part in text), "NUMERIC" if text else "BLOB")


def _fits(kind: str, affinity: str) -> bool:
    return kind == affinity or affinity in FLEXIBLE or (kind, affinity) == ("INTEGER", "REAL")


def quoted(name: str) -> str:
    """A name as SQL takes it literally."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    """Names with commas between."""
    return ", ".join(map(quoted, names))
