"""An open file of SQLite's: a batch is one transaction; others can read while it is written (WAL)."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.sinks.errors import Refused, Unavailable, Unsuitable
from headrace.sinks.rows import last_of_each_key
from headrace.sinks.sink import DELETED
from headrace.sinks.sqlite_table import TablePlan, listed, quoted, values_of
from headrace.sinks.table_sink import refuse_if_superseded, written_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from headrace.sinks.sink import Place
    from headrace.sinks.sqlite import SqliteSink

PATIENCE_S: Final = 5.0
"""How long a lock of another process is waited for before the target counts as away."""
NOT_NOW: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
    }
)
REFUSALS: Final = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError)
PERHAPS_LATER: Final = ("FOREIGN KEY", "UNIQUE")
NO_CHANGE: Final = "SELECT 1"


def open_target(sink: SqliteSink, file: Path, place: Place) -> SqliteTarget:
    """Open the file, and have the table there."""
    key = sink.key if sink.mode != "append" else ()
    names = written_columns(place.schema, key, sink.mode, sink.name)
    plan = TablePlan(
        table=sink.table, key=key, columns={name: place.schema.field(name).type for name in names}
    )
    with _faults(sink.name):
        connection = sqlite3.connect(file, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # What was committed must be there after a power cut too: the log is told that it is.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            with _transaction(connection):
                plan.prepare(connection)
        except BaseException:
            connection.close()
            raise
    return SqliteTarget(connection, sink, plan, place)


class SqliteTarget:
    """A table, and the mark of one job beside it."""

    def __init__(
        self, connection: sqlite3.Connection, sink: SqliteSink, plan: TablePlan, place: Place
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._plan = plan
        self._place = place
        self._insertion = _insertion(plan)
        same = " AND ".join(f"{quoted(name)} = ?" for name in plan.key)
        self._deletion = f"DELETE FROM {quoted(plan.table)} WHERE {same}"  # noqa: S608  names are quoted

    def newest(self) -> int | None:
        """The batch that the mark names."""
        with _faults(self._sink.name):
            mark = self._mark()
        return mark[1] if mark is not None and mark[0] == self._place.generation else None

    def write(self, batch: int, rows: pa.Table) -> None:
        """Rows and mark in one transaction."""
        indexes = last_of_each_key(rows, self._plan.key)
        with _faults(self._sink.name):
            try:
                with _transaction(self._connection):
                    if self._claim(batch):
                        self._apply(indexes, rows)
            except sqlite3.IntegrityError:  # only the commit raises it: statements are `Refused`
                raise self._find_violations(indexes, rows) from None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _claim(self, batch: int) -> bool:
        """Set the mark; False when this very batch is there already."""
        claimed = self._connection.execute(
            "INSERT INTO headrace_marks (job, target, generation, batch) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (job, target) DO UPDATE SET generation = excluded.generation, "
            "batch = excluded.batch WHERE (generation, batch) < (excluded.generation, excluded.batch)",
            [self._place.job, self._sink.name, self._place.generation, batch],
        )
        if claimed.rowcount:
            return True
        refuse_if_superseded(self._mark(), self._place, self._sink.name)
        return False

    def _mark(self) -> tuple[int, int] | None:
        query = "SELECT generation, batch FROM headrace_marks WHERE job = ? AND target = ?"
        found: tuple[int, int] | None = self._connection.execute(
            query, [self._place.job, self._sink.name]
        ).fetchone()
        return found

    def _apply(self, indexes: pa.Array, rows: pa.Table) -> None:
        """Write the rows in the order of the batch, so that SQLite decides which keys are equal."""
        statements = list(self._statements(rows.take(indexes)))
        try:
            with self._savepoint():
                for statement, values in statements:
                    self._connection.execute(statement, values)
        except REFUSALS:
            self._apply_one_by_one(indexes, statements)

    def _apply_one_by_one(self, indexes: pa.Array, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        refused = {}
        for index, (statement, values) in zip(indexes.to_pylist(), statements, strict=True):
            try:
                with self._savepoint():
                    self._connection.execute(statement, values)
            except REFUSALS as error:
                refused[index] = str(error)
        if refused:
            is_final = not any(reason.startswith(PERHAPS_LATER) for reason in refused.values())
            raise Refused(refused, final=is_final)

    def _find_violations(self, indexes: pa.Array, rows: pa.Table) -> Refused | Unsuitable:
        """The rows that violate a deferred foreign key: SQLite checks it at the commit and names no row.

        `Unsuitable` where no row of the batch refers to a missing row: the batch takes away the row that
        another table refers to, or the table has no rowids by which to find the row.
        """
        written: dict[int, int] = {}
        returning = " RETURNING rowid" if self._plan.has_rowids(self._connection) else ""
        with _transaction(self._connection, is_kept=False):
            for index, (statement, values) in zip(
                indexes.to_pylist(), self._statements(rows.take(indexes)), strict=True
            ):
                is_insertion = statement is self._insertion
                found = self._connection.execute(statement + (returning if is_insertion else ""), values)
                written |= dict.fromkeys((rowid for (rowid,) in found.fetchall() if is_insertion), index)
            violations = self._connection.execute("PRAGMA foreign_key_check").fetchall()
        refused = {
            written[rowid]: f"FOREIGN KEY constraint failed: {child} references {parent}"
            for child, rowid, parent, _ in violations
            if child.lower() == self._plan.table.lower() and rowid in written
        }
        if refused:
            return Refused(dict(sorted(refused.items())), final=False)
        keys = {f"{child}, which references {parent}" for child, _, parent, _ in violations}
        return Unsuitable(
            f"{self._sink.name}: the batch violates a deferred foreign key of {', '.join(sorted(keys))}. "
            "Insert the missing rows, or remove the references to them, and start the job again. Nothing of "
            "the batch was written."
        )

    def _statements(self, rows: pa.Table) -> Iterator[tuple[str, Sequence[Any]]]:
        """What each row does to the table."""
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


def _insertion(plan: TablePlan) -> str:
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
def _faults(name: str) -> Iterator[None]:
    """A block in which what SQLite says of its file is `Unavailable`."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in NOT_NOW:  # the extended codes have the plain one in them
            raise
        raise Unavailable(f"{name}: {error}") from error
