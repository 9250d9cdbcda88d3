"""A table in a SQLite file: a batch is one transaction, and others can read while it is written (WAL).

The table is created if it is missing, gets the columns that it lacks, and is otherwise checked.
"""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.rows import last_of_each_key, to_json
from headrace.sinks.sink import (
    DEFAULT_MAX_ATTEMPTS,
    DELETED,
    IncompatibleTarget,
    RowsRejected,
    TargetUnavailable,
    check_not_fenced,
    target_columns,
    validate_key,
    validate_mode,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.sinks.sink import Mode, SinkContext, SinkWriter
    from headrace.sinks.staging import Chunk, StagedBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSink:
    """A table that a job writes; see `sqlite`."""

    table: str
    key: tuple[str, ...]
    mode: Mode
    file: Path | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    @property
    def name(self) -> str:
        """The name for display."""
        return f"sqlite {self.table}"

    def open(self, context: SinkContext) -> SinkWriter:
        """Open or create the file; create or check the table."""
        file = self.file or Settings.read().url("sqlite")
        if file is None:
            raise Misuse(
                f'{self.name}: no file is configured: pass file="shop.db", or set HEADRACE_SQLITE in the '
                "environment, or url under [sqlite] in headrace.toml."
            )
        return open_writer(self, Path(file), context)


def sqlite(
    table: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode | None = None,
    file: str | Path | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> SqliteSink:
    """A table in a SQLite file as an output of a job, with each row written exactly once.

    Key, modes and `max_attempts` are those of `postgres`. Times are stored as ISO 8601 text, decimals as
    text, booleans as 0 and 1, and nested values as JSON.

    >>> sqlite("revenue", key="product", file="shop.db").name
    'sqlite revenue'
    """
    what = f"sqlite {table!r}"
    if not table:
        raise Misuse(f"{what}: write the name of the table.")
    if max_attempts < 1:
        raise Misuse(f"{what}: max_attempts must be at least 1.")
    columns = validate_key(key, what)
    return SqliteSink(
        table=table,
        key=columns,
        mode=validate_mode(mode, columns, what),
        file=None if file is None else Path(file),
        max_attempts=max_attempts,
    )


FLEXIBLE: Final = ("BLOB", "NUMERIC")
"""Affinities of columns that store any value; a column without a type has the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteTable:
    """The table that the rows need."""

    table: str
    key: tuple[str, ...]
    columns: Mapping[str, pa.DataType]

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Create or extend the table; raises `IncompatibleTarget` if it cannot hold the rows."""
        found = connection.execute(f"PRAGMA table_info({quoted(self.table)})").fetchall()
        if found:
            self._check_columns(found)
            self._check_key(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS headrace_batch_markers (job TEXT, target TEXT, generation INTEGER "
            "NOT NULL, batch INTEGER NOT NULL, PRIMARY KEY (job, target))"
        )
        names = {name for _, name, *_ in found}
        if not found:
            key = f", PRIMARY KEY ({listed(self.key)})" if self.key else ""
            parts = ", ".join(self._column_definition(name, kind) for name, kind in self.columns.items())
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

    def _column_definition(self, name: str, kind: pa.DataType) -> str:
        # SQLite allows nulls in a primary key, and nulls are not equal to each other.
        return f"{quoted(name)} {type_of(kind)}{' NOT NULL' if name in self.key else ''}"

    def _check_columns(self, found: Sequence[tuple[Any, ...]]) -> None:
        kinds = {name: kind for _, name, kind, *_ in found}
        wrong = [
            f"its column {name} is of type {kinds[name]}, and the rows have {type_of(kind)}"
            for name, kind in self.columns.items()
            if name in kinds and not _fits(type_of(kind), _affinity(kinds[name]))
        ]
        wrong += [f"its key has no column {name}" for name in self.key if name not in kinds]
        wrong += [
            f"its column {name} is NOT NULL without a default, and the rows do not have it"
            for _, name, _, must, default, _ in found
            if must and default is None and name not in self.columns
        ]
        if wrong:
            raise IncompatibleTarget(
                f"the table {self.table!r} in SQLite cannot hold the job's rows: {'; '.join(wrong)}. Change "
                "the table, cast or rename the columns in the job, or use another table, which is created "
                "for the rows. Nothing was written."
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
            raise IncompatibleTarget(
                f"the table {self.table!r} in SQLite has no unique index on the key ({columns_text}): run "
                f"CREATE UNIQUE INDEX … ON {self.table} ({columns_text}), or use the key of the table. "
                "Nothing was written."
            )


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column as SQLite stores them."""
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    kind = column.type
    if pa.types.is_nested(kind):
        return [None if value is None else to_json(value) for value in values]
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return [None if value is None else value.isoformat() for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    if pa.types.is_duration(kind):
        return [None if value is None else value.total_seconds() for value in values]
    return values


def type_of(kind: pa.DataType) -> str:
    """The type of a new column for values of an Arrow type.

    >>> [type_of(kind) for kind in (pa.int64(), pa.bool_(), pa.float32(), pa.binary(), pa.date32())]
    ['INTEGER', 'INTEGER', 'REAL', 'BLOB', 'TEXT']
    """
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    if pa.types.is_floating(kind) or pa.types.is_duration(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "TEXT"


def _affinity(declared: str) -> str:
    """The affinity of a declared type, by SQLite's rules."""
    text = declared.upper()
    rules = {"INT": "INTEGER", "CHAR": "TEXT", "CLOB": "TEXT", "TEXT": "TEXT", "BLOB": "BLOB"}
    rules |= {"REAL": "REAL", "FLOA": "REAL", "DOUB": "REAL"}
    return next((kind for part, kind in rules.items() if part in text), "NUMERIC" if text else "BLOB")


def _fits(kind: str, affinity: str) -> bool:
    return kind == affinity or affinity in FLEXIBLE or (kind, affinity) == ("INTEGER", "REAL")


def quoted(name: str) -> str:
    """A quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    """Quoted identifiers separated by commas."""
    return ", ".join(map(quoted, names))


LOCK_TIMEOUT_S: Final = 5.0
"""How long to wait for a lock of another process before the target is unavailable."""
RETRYABLE_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
    }
)
ROW_ERRORS: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
RETRYABLE_VIOLATIONS: Final = ("FOREIGN KEY", "UNIQUE")
NO_CHANGE: Final = "SELECT 1"


def open_writer(sink: SqliteSink, file: Path, context: SinkContext) -> SqliteWriter:
    """Open the file, and create or check the table."""
    key = sink.key if sink.mode != "append" else ()
    names = target_columns(context.schema, key, sink.mode, sink.name)
    plan = SqliteTable(
        table=sink.table, key=key, columns={name: context.schema.field(name).type for name in names}
    )
    with _translated_errors(sink.name):
        connection = sqlite3.connect(
            file, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # Commits must survive a power loss, because the log depends on them.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            with _transaction(connection):
                plan.prepare(connection)
        except BaseException:
            connection.close()
            raise
    return SqliteWriter(connection, sink, plan, context)


class SqliteWriter:
    """Writes the batches of one job to a table."""

    def __init__(
        self, connection: sqlite3.Connection, sink: SqliteSink, plan: SqliteTable, context: SinkContext
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._plan = plan
        self._context = context
        self._insertion = _insertion(plan)
        same = " AND ".join(f"{quoted(name)} = ?" for name in plan.key)
        self._deletion = f"DELETE FROM {quoted(plan.table)} WHERE {same}"  # noqa: S608  names are quoted

    def last_batch(self) -> int | None:
        """The batch of the marker, or None."""
        with _translated_errors(self._sink.name):
            marker = self._read_marker()
        return marker[1] if marker is not None and marker[0] == self._context.generation else None

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Write the rows and the batch marker in one transaction."""
        with _translated_errors(self._sink.name):
            try:
                with _transaction(self._connection):
                    if self._set_marker(batch):
                        self._apply_all(staged)
            except (
                sqlite3.IntegrityError
            ):  # raised by the commit only: those of statements are `RowsRejected`
                raise self._find_violations(staged) from None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _set_marker(self, batch: int) -> bool:
        """Set the batch marker; False if the batch was written already."""
        claimed = self._connection.execute(
            "INSERT INTO headrace_batch_markers (job, target, generation, batch) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (job, target) DO UPDATE SET generation = excluded.generation, "
            "batch = excluded.batch WHERE (generation, batch) < (excluded.generation, excluded.batch)",
            [self._context.job, self._sink.name, self._context.generation, batch],
        )
        if claimed.rowcount:
            return True
        check_not_fenced(self._read_marker(), self._context, self._sink.name)
        return False

    def _read_marker(self) -> tuple[int, int] | None:
        query = "SELECT generation, batch FROM headrace_batch_markers WHERE job = ? AND target = ?"
        found: tuple[int, int] | None = self._connection.execute(
            query, [self._context.job, self._sink.name]
        ).fetchone()
        return found

    def _apply_all(self, staged: StagedBatch) -> None:
        """Write the rows in the order of the batch, so that SQLite decides which keys are equal."""
        rejected: dict[int, str] = {}
        for chunk in staged:
            ordinals, rows = self._last_rows(chunk)
            rejected |= self._apply(ordinals, list(self._statements(rows)))
        if rejected:
            is_retryable = any(reason.startswith(RETRYABLE_VIOLATIONS) for reason in rejected.values())
            raise RowsRejected(rejected, retryable=is_retryable)

    def _last_rows(self, chunk: Chunk) -> tuple[list[int], pa.Table]:
        """The last row of each key, and the ordinals of those rows."""
        rows = chunk.read()
        indexes = last_of_each_key(rows, self._plan.key)
        ordinals: list[int] = chunk.ordinals.take(indexes).to_pylist()
        return ordinals, rows.take(indexes)

    def _apply(
        self, ordinals: Sequence[int], statements: Sequence[tuple[str, Sequence[Any]]]
    ) -> dict[int, str]:
        """Run the statements; returns the reasons of rows that are rejected."""
        try:
            with self._savepoint():
                for statement, values in statements:
                    self._connection.execute(statement, values)
        except ROW_ERRORS:
            return self._apply_row_by_row(ordinals, statements)
        return {}

    def _apply_row_by_row(
        self, ordinals: Sequence[int], statements: Sequence[tuple[str, Sequence[Any]]]
    ) -> dict[int, str]:
        rejected = {}
        for ordinal, (statement, values) in zip(ordinals, statements, strict=True):
            try:
                with self._savepoint():
                    self._connection.execute(statement, values)
            except ROW_ERRORS as error:
                rejected[ordinal] = str(error)
        return rejected

    def _find_violations(self, staged: StagedBatch) -> RowsRejected | IncompatibleTarget:
        """The rows that violate a deferred foreign key: SQLite checks it at the commit and names no row.

        `IncompatibleTarget` if no row of the batch refers to a missing row: the batch deletes a row to which
        another table refers, or the table was created WITHOUT ROWID.
        """
        written: dict[int, int] = {}
        returning = " RETURNING rowid" if self._plan.has_rowids(self._connection) else ""
        with _transaction(self._connection, is_kept=False):
            for chunk in staged:
                ordinals, rows = self._last_rows(chunk)
                for ordinal, (statement, values) in zip(ordinals, self._statements(rows), strict=True):
                    is_insertion = statement is self._insertion
                    found = self._connection.execute(statement + (returning if is_insertion else ""), values)
                    rowids = [rowid for (rowid,) in found.fetchall() if is_insertion]
                    written |= dict.fromkeys(rowids, ordinal)
            violations = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        rejected = {
            written[rowid]: f"FOREIGN KEY constraint failed: {child} references {parent}"
            for child, rowid, parent, _ in violations
            if child.lower() == self._plan.table.lower() and rowid in written
        }
        if rejected:
            return RowsRejected(dict(sorted(rejected.items())), retryable=True)
        keys = {f"{child}, which references {parent}" for child, _, parent, _ in violations}
        return IncompatibleTarget(
            f"{self._sink.name}: the batch violates a deferred foreign key of {', '.join(sorted(keys))}. "
            "Insert the missing rows, or remove the references to them, and start the job again. Nothing of "
            "the batch was written."
        )

    def _statements(self, rows: pa.Table) -> Iterator[tuple[str, Sequence[Any]]]:
        """The statement and the parameters for each row."""
        is_merged = self._sink.mode != "append" and DELETED in rows.column_names
        deleted = rows[DELETED].to_pylist() if is_merged else itertools.repeat(False)
        columns = {name: values_of(rows[name]) for name in self._plan.columns}
        keys = [columns[name] for name in self._plan.key]
        for index, (values, is_deleted) in enumerate(
            zip(zip(*columns.values(), strict=True), deleted, strict=False)
        ):
            if not is_deleted:
                yield self._insertion, values
            elif self._sink.mode == "mirror":
                yield self._deletion, [column[index] for column in keys]
            else:
                yield NO_CHANGE, ()

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._connection.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK TO part")
            raise
        finally:
            self._connection.execute("RELEASE part")


def _insertion(plan: SqliteTable) -> str:
    names = list(plan.columns)
    places = ", ".join("?" for _ in names)
    statement = f"INSERT INTO {quoted(plan.table)} ({listed(names)}) VALUES ({places})"  # noqa: S608  quoted
    if not plan.key:
        return statement
    others = [name for name in names if name not in plan.key]
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
    action = f"UPDATE SET {changes}" if others else "NOTHING"
    return f"{statement} ON CONFLICT ({listed(plan.key)}) DO {action}"


@contextmanager
def _transaction(connection: sqlite3.Connection, *, is_kept: bool = True) -> Iterator[None]:
    """A transaction that excludes other writers: committed as a whole, or rolled back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT" if is_kept else "ROLLBACK")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    """Raise `TargetUnavailable` for errors of the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in RETRYABLE_ERRORS:  # extended codes contain the primary code
            raise
        raise TargetUnavailable(f"{name}: {error}") from error
