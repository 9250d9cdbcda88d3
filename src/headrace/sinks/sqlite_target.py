"""An open file of SQLite's: a batch is one transaction; others can read while it is written (WAL)."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.errors import Refused, Unavailable
from headrace.sinks.rows import last_of_each_key
from headrace.sinks.sifting import sift
from headrace.sinks.sink import DELETED
from headrace.sinks.sqlite_table import TablePlan, listed, quoted, values_of
from headrace.sinks.table_sink import refuse_if_superseded, written_columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
PERHAPS_LATER: Final = ("FOREIGN KEY", "UNIQUE")


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
        with _faults(self._sink.name), _transaction(self._connection):
            if self._claim(batch):
                self._apply(last_of_each_key(rows, self._plan.key), rows)

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
        if self._sink.mode != "append" and DELETED in rows.column_names:
            gone = pc.fill_null(rows[DELETED].combine_chunks().take(indexes), fill_value=False)
            if self._sink.mode == "mirror":
                self._delete(rows.take(indexes.filter(gone)))
            indexes = indexes.filter(pc.invert(gone))
        counting = rows.take(indexes)
        values = list(zip(*(values_of(counting[name]) for name in self._plan.columns), strict=True))
        reasons: list[str] = []

        def apply(first: int, end: int) -> str | None:
            self._connection.execute("SAVEPOINT part")
            try:
                self._connection.executemany(self._insertion, values[first:end])
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
                self._connection.execute("ROLLBACK TO part")
                reasons.append(str(error))
                return str(error)
            self._connection.execute("RELEASE part")
            return None

        refused = sift(len(values), apply)
        if refused:
            final = not any(reason.startswith(PERHAPS_LATER) for reason in reasons)
            named = {indexes[position].as_py(): reason for position, reason in refused.items()}
            raise Refused(named, final=final)

    def _delete(self, gone: pa.Table) -> None:
        keys = zip(*(values_of(gone[name]) for name in self._plan.key), strict=True)
        self._connection.executemany(self._deletion, keys)


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
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A block that is stored as a whole or not at all, and that no other writer comes into."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _faults(name: str) -> Iterator[None]:
    """A block in which what SQLite says of its file is `Unavailable`."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in NOT_NOW:  # the extended codes have the plain one in them
            raise
        raise Unavailable(f"{name}: {error}") from error
