"""An open connection to a table of PostgreSQL: a batch is one transaction.

```text
 BEGIN
   mark (job, batch)     takes the row of the job's mark: whoever else writes for the job waits, or is late
   COPY … staging        a temporary table of this connection, in the order of the key
   DELETE … USING staging             (mirror)
   INSERT … ON CONFLICT               one statement for all rows
 COMMIT
```

Rows that are only added are copied into the table itself.

When PostgreSQL refuses the rows, they are tried again in halves, each under a savepoint, until those are
found that it does not take. Then all is rolled back, and the caller is told.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.sinks.errors import Refused, Unavailable, Unsuitable
from headrace.sinks.postgres_binary import binary_of
from headrace.sinks.postgres_merge import BY_INDEX, STAGING, deletion, insertion, staging
from headrace.sinks.postgres_table import TablePlan, listed
from headrace.sinks.postgres_types import csv_of
from headrace.sinks.rows import in_order_of_key, last_of_each_key
from headrace.sinks.sifting import sift
from headrace.sinks.sink import DELETED
from headrace.sinks.table_sink import refuse_if_superseded, written_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.sinks.postgres import PostgresSink
    from headrace.sinks.sink import Place

PATIENCE: Final = {
    "connect_timeout": "10",
    # A server whose network is gone does not say so: after so long it counts as away.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SESSION: Final = (
    f"SET lock_timeout = '30s'; SET client_min_messages = 'warning'; SET TimeZone = 'UTC'; {BY_INDEX}"
)
REFUSALS: Final = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that speak of the rows: values, constraints, views, sizes, and what triggers say."""
PERHAPS_LATER: Final = ("23503", "23505", "23P01")
"""Constraints that look at other rows, which may come or go: foreign key, unique, exclusion."""
NOT_NOW: Final = ("25006", "40", "53", "55", "57", "58", "08")
"""Read only (a standby), rollbacks, resources, locks, shutdowns, the system, connections."""


def open_target(sink: PostgresSink, url: str, place: Place) -> PostgresTarget:
    """Connect, and have the table there."""
    columns = written_columns(place.schema, sink.key if sink.mode != "append" else (), sink.mode, sink.name)
    plan = TablePlan(
        table=sink.table,
        key=sink.key if sink.mode != "append" else (),
        columns={name: place.schema.field(name).type for name in columns},
    )
    with _faults(sink.name):
        connection = _connect(url, sink, place)
        try:
            connection.execute(SESSION)
            plan.prepare(connection)
            target = PostgresTarget(connection, sink, plan, place)
            if sink.mode != "append":
                target.make_staging()
        except BaseException:
            connection.close()
            raise
        return target


def _connect(url: str, sink: PostgresSink, place: Place) -> psycopg.Connection[Any]:
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Without the text, and without what psycopg says of it: there may be a password in it.
        raise Unsuitable(
            f"{sink.name}: its url is none that PostgreSQL understands: write "
            "postgresql://user:password@host:5432/database."
        ) from None
    options: dict[str, Any] = {**PATIENCE, "application_name": f"headrace {place.job}", **given}
    return psycopg.connect(autocommit=True, **options)


class PostgresTarget:
    """A table, and the mark of one job beside it."""

    def __init__(
        self, connection: psycopg.Connection[Any], sink: PostgresSink, plan: TablePlan, place: Place
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._plan = plan
        self._place = place
        self._deletes = sink.mode == "mirror" and DELETED in place.schema.names
        self._staged = [*plan.columns, *([DELETED] if self._deletes else [])]
        self._is_merged = sink.mode != "append"
        is_binary = plan.takes_binary(connection)
        schema = pa.schema([(name, place.schema.field(name).type) for name in self._staged])
        self._form: Callable[[pa.Table], memoryview] = csv_of
        if is_binary:
            self._form = lambda rows: binary_of(rows.cast(schema))
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            STAGING if self._is_merged else plan.name,
            listed(self._staged),
            sql.SQL("binary" if is_binary else "csv"),
        )

    def make_staging(self) -> None:
        """Make the table that rows are copied to; it goes with the connection."""
        self._connection.execute(staging(self._plan, deletes=self._deletes))

    def newest(self) -> int | None:
        """The batch that the mark names."""
        with _faults(self._sink.name):
            mark = self._mark()
        return mark[1] if mark is not None and mark[0] == self._place.generation else None

    def write(self, batch: int, rows: pa.Table) -> None:
        """Rows and mark in one transaction."""
        with _faults(self._sink.name), self._connection.transaction():
            if self._claim(batch):
                self._apply(self._counting(rows), rows)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _claim(self, batch: int) -> bool:
        """Set the mark; False when this very batch is there already."""
        claimed = self._connection.execute(
            sql.SQL(
                "INSERT INTO {marks} AS mark (job, target, generation, batch) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (job, target) DO UPDATE SET generation = excluded.generation, "
                "batch = excluded.batch, written_at = now() "
                "WHERE (mark.generation, mark.batch) < (excluded.generation, excluded.batch)"
            ).format(marks=self._plan.marks),
            [self._place.job, self._sink.name, self._place.generation, batch],
        )
        if claimed.rowcount:
            return True
        refuse_if_superseded(self._mark(), self._place, self._sink.name)
        return False

    def _mark(self) -> tuple[int, int] | None:
        query = sql.SQL("SELECT generation, batch FROM {} WHERE job = %s AND target = %s")
        marks = self._connection.execute(
            query.format(self._plan.marks), [self._place.job, self._sink.name]
        ).fetchall()
        return marks[0] if marks else None

    def _counting(self, rows: pa.Table) -> pa.Array:
        """The indexes of the rows that are to be written."""
        indexes = last_of_each_key(rows, self._plan.key)
        if self._sink.mode == "upsert" and DELETED in rows.column_names:
            gone = pc.fill_null(rows[DELETED].combine_chunks().take(indexes), fill_value=False)
            indexes = indexes.filter(pc.invert(gone))
        return in_order_of_key(rows, self._plan.key, indexes)

    def _apply(self, indexes: pa.Array, rows: pa.Table) -> None:
        counting = rows.select(self._staged)
        if self._plan.key:
            counting = counting.take(indexes)
        codes: set[str] = set()

        def apply(first: int, end: int) -> str | None:
            try:
                with self._connection.transaction():
                    self._merge_rows(counting.slice(first, end - first), once=end - first == len(counting))
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(REFUSALS):
                    raise
                codes.add(error.sqlstate or "")
                return _first_line(error)
            return None

        refused = sift(len(counting), apply)
        if refused:
            named = {indexes[position].as_py(): reason for position, reason in refused.items()}
            raise Refused(named, final=codes.isdisjoint(PERHAPS_LATER))

    def _merge_rows(self, rows: pa.Table, *, once: bool) -> None:
        with self._connection.cursor() as cursor:
            with cursor.copy(self._copy) as copy:
                copy.write(self._form(rows))
            for statement in self._statements():
                # Not prepared: a plan that was made for a small table would be kept when it has grown.
                cursor.execute(statement, prepare=False)
            if not once and self._is_merged:
                cursor.execute(sql.SQL("TRUNCATE {}").format(STAGING))

    def _statements(self) -> Iterator[sql.Composed]:
        """What brings staged rows into the table."""
        if not self._is_merged:
            return
        if self._deletes:
            yield deletion(self._plan)
        yield insertion(self._plan, deletes=self._deletes)


@contextmanager
def _faults(name: str) -> Iterator[None]:
    """A block in which what PostgreSQL says of itself is `Unavailable`."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(NOT_NOW):
            raise
        raise Unavailable(f"{name}: {_first_line(error)}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unsuitable(
            f"{name}: {_first_line(error)}. The user of its url has to be allowed to write the table and "
            "headrace_marks beside it, and to make them where they are missing."
        ) from error


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).strip()
