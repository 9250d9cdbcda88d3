"""Writes batches to a PostgreSQL table, each in one transaction, safely with other concurrent writers.

```text
 BEGIN
   batch marker (job, batch)   locks the row of the job's marker, which serializes writers of the job
   COPY … staging              a temporary table of this connection, in the order of the key
   DELETE … USING staging      (mirror)
   INSERT … ON CONFLICT        one statement for all rows
 COMMIT
```

In append mode, rows are copied directly into the table.

If PostgreSQL rejects the batch, a PL/pgSQL block merges the staged rows one by one, each in a subtransaction,
and collects the rejected rows with their reasons: a batch of n bad rows costs one pass, not n statements of
the client. Then the transaction is rolled back, and the rows are raised as `RowsRejected`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.sinks.postgres_copy import encode_binary, encode_composite, encode_csv
from headrace.sinks.postgres_table import MARKERS, PostgresTable, listed
from headrace.sinks.rows import last_of_each_key, sort_by_key
from headrace.sinks.sink import (
    DELETED,
    IncompatibleTarget,
    RowsRejected,
    TargetUnavailable,
    check_not_fenced,
    target_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.sinks.postgres import PostgresSink
    from headrace.sinks.sink import SinkContext

STAGING: Final = sql.Identifier("pg_temp", "headrace_staging")
LITERALS: Final = sql.Identifier("pg_temp", "headrace_literals")
"""Staged rows as composite literals, which are parsed one by one."""
REJECTED: Final = sql.Identifier("pg_temp", "headrace_rejected")
POSITION: Final = "_headrace_position"
"""The staging column with the row's index in the batch: of equal keys the last one counts."""
ROW_ERRORS: Final = ("22", "23", "44", "54", "P0")
"""SQLSTATE classes of errors in rows: values, constraints, views, limits, exceptions of triggers."""
BY_INDEX: Final = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
"""Use the index of the key: the staged rows are few compared with the table, and sorted by key. PostgreSQL
has no statistics of the staging table, and might scan the whole target, or compile a statement that runs
once."""


CREATE_REJECTED: Final = sql.SQL(
    "CREATE TEMPORARY TABLE {} ({} bigint, code text, reason text) ON COMMIT DROP"
).format(REJECTED, sql.Identifier(POSITION))
CREATE_LITERALS: Final = sql.SQL(
    "CREATE TEMPORARY TABLE {} ({} bigint, literal bytea) ON COMMIT DROP"
).format(LITERALS, sql.Identifier(POSITION))
"""The type is bytea because a row may contain invalid text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStatements:
    """The statements for one table."""

    plan: PostgresTable
    has_deleted: bool
    """Whether the rows have the column `_deleted`."""
    deletes: bool
    """Whether rows with `_deleted` delete their key; otherwise they are skipped."""
    is_key_exact: bool
    """Whether different keys in Arrow are different in the table."""

    def create_staging(self, *, on_commit: sql.SQL) -> sql.Composed:
        """Creates the staging table with the types and collations of the target table."""
        columns = listed(list(self.plan.columns))
        if self.has_deleted:
            columns += sql.SQL(", false AS {}").format(sql.Identifier(DELETED))
        return sql.SQL(
            "CREATE TEMPORARY TABLE {} ON COMMIT {} AS SELECT {}, 0::bigint AS {} FROM {} WITH NO DATA"
        ).format(STAGING, on_commit, columns, sql.Identifier(POSITION), self.plan.name)

    def delete(self) -> sql.Composed:
        """Deletes the keys of staged rows with `_deleted`."""
        return sql.SQL("DELETE FROM {} there USING ({}) given WHERE given.{} AND {}").format(
            self.plan.name, self._last_of_each_key(), sql.Identifier(DELETED), self._same_key()
        )

    def upsert(self) -> sql.Composed:
        """Inserts or updates the staged rows without `_deleted`."""
        kept = sql.SQL(" WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED))
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) given{}{}").format(
            self.plan.name,
            listed(list(self.plan.columns)),
            listed(list(self.plan.columns)),
            self._last_of_each_key(),
            kept if self.has_deleted else sql.SQL(""),
            self._on_conflict(),
        )

    def parse_row_by_row(self) -> sql.Composed:
        """Parses each literal by the input functions of the columns, as COPY does, into the staging table."""
        rows = sql.SQL("SELECT * FROM {} ORDER BY {}").format(LITERALS, sql.Identifier(POSITION))
        statement = sql.SQL(
            "staged := convert_from(given.literal, 'UTF8')::{0}; INSERT INTO {0} SELECT staged.*;"
        )
        return _row_by_row(rows, statement.format(STAGING))

    def merge_row_by_row(self) -> sql.Composed:
        """Merges the staged rows one after the other, in the order of the batch."""
        columns = list(self.plan.columns)
        values = sql.SQL(", ").join(sql.SQL("given.{}").format(sql.Identifier(name)) for name in columns)
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}){};").format(
            self.plan.name, listed(columns), values, self._on_conflict()
        )
        if self.has_deleted:
            delete = sql.SQL("DELETE FROM {} there WHERE {};").format(self.plan.name, self._same_key())
            statement = sql.SQL("IF given.{} THEN {} ELSE {} END IF;").format(
                sql.Identifier(DELETED), delete if self.deletes else sql.SQL("NULL;"), statement
            )
        rows = sql.SQL("SELECT * FROM ({}) last ORDER BY {}").format(
            self._last_of_each_key(), sql.Identifier(POSITION)
        )
        return _row_by_row(rows, statement)

    def _last_of_each_key(self) -> sql.Composed:
        """The last staged row of each key, by the equality of the database.

        Arrow has removed duplicates by its own equality. Other keys may be equal in the database (0.0 and
        -0.0, a uuid in upper case, a case-insensitive collation). A null is not equal to a null.
        """
        if not self.plan.key or self.is_key_exact:
            return sql.SQL("SELECT * FROM {}").format(STAGING)
        key = sql.SQL(", ").join(
            sql.SQL("{0}, CASE WHEN {0} IS NULL THEN {1} END").format(
                sql.Identifier(name), sql.Identifier(POSITION)
            )
            for name in self.plan.key
        )
        return sql.SQL("SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2} DESC").format(
            key, STAGING, sql.Identifier(POSITION)
        )

    def _same_key(self) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("there.{0} = given.{0}").format(sql.Identifier(name)) for name in self.plan.key
        )

    def _on_conflict(self) -> sql.Composable:
        """The ON CONFLICT clause: update all other columns, or nothing if there are none."""
        if not self.plan.key:
            return sql.SQL("")
        changes = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
            for name in self.plan.columns
            if name not in self.plan.key
        ]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changes) if changes else sql.SQL("NOTHING")
        return sql.SQL(" ON CONFLICT ({}) DO {}").format(listed(self.plan.key), action)


def _row_by_row(rows: sql.Composable, statement: sql.Composable) -> sql.Composed:
    """A PL/pgSQL loop that runs a statement for each row in a subtransaction."""
    return sql.SQL(
        """DO $headrace$ #variable_conflict use_column
        DECLARE given record; staged {staging};
        BEGIN FOR given IN {rows} LOOP
            BEGIN {statement}
            EXCEPTION WHEN OTHERS THEN
                IF left(SQLSTATE, 2) <> ALL ({row_errors}) THEN RAISE; END IF;
                INSERT INTO {rejected} VALUES (given.{position}, SQLSTATE, SQLERRM);
            END;
        END LOOP; END $headrace$"""
    ).format(
        staging=STAGING,
        rows=rows,
        statement=statement,
        row_errors=sql.Literal(list(ROW_ERRORS)),
        rejected=REJECTED,
        position=sql.Identifier(POSITION),
    )


CONNECTION_OPTIONS: Final = {
    "connect_timeout": "10",
    # Without a network the server does not close the connection: these timeouts detect it.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
SESSION: Final = (
    f"SET lock_timeout = '30s'; SET client_min_messages = 'warning'; SET TimeZone = 'UTC'; {BY_INDEX}"
)
ROW_BY_ROW_ERRORS: Final = (*ROW_ERRORS, "21000")
"""Errors after which the batch is written row by row. 21000: two rows have the same key in the unique index
but not by the types of its columns, because the index has another collation or a trigger changes the key."""
RETRYABLE_VIOLATIONS: Final = ("23503", "23505", "23P01")
"""Violations that other rows may resolve: foreign key, unique, exclusion."""
RETRYABLE_ERRORS: Final = ("25006", "40", "53", "55006", "55P", "57", "58", "08")
"""Read-only (standby), rollbacks, resources, locks, shutdown, system errors, connections."""
CHECK_DEFERRED: Final = "SET CONSTRAINTS ALL IMMEDIATE"
"""Checks deferred constraints before the commit, where rejected rows can still be found."""


def open_writer(sink: PostgresSink, url: str, context: SinkContext) -> PostgresWriter:
    """Connect, and create or check the table."""
    columns = target_columns(context.schema, sink.key if sink.mode != "append" else (), sink.mode, sink.name)
    plan = PostgresTable(
        table=sink.table,
        key=sink.key if sink.mode != "append" else (),
        columns={name: context.schema.field(name).type for name in columns},
    )
    with _translated_errors(sink.name):
        connection = _connect(url, sink, context)
        try:
            connection.execute(SESSION)
            plan.prepare(connection)
            target = PostgresWriter(connection, sink, plan, context)
            target.create_staging()
        except BaseException:
            connection.close()
            raise
        return target


def _connect(url: str, sink: PostgresSink, context: SinkContext) -> psycopg.Connection[Any]:
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The URL and psycopg's message may contain a password.
        raise IncompatibleTarget(
            f"{sink.name}: the URL is invalid: write postgresql://user:password@host:5432/database."
        ) from None
    options: dict[str, Any] = {**CONNECTION_OPTIONS, "application_name": f"headrace {context.job}", **given}
    return psycopg.connect(autocommit=True, **options)


class PostgresWriter:
    """Writes the batches of one job to a table."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        sink: PostgresSink,
        plan: PostgresTable,
        context: SinkContext,
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._plan = plan
        self._context = context
        self._is_merged = sink.mode != "append"
        has_deleted = self._is_merged and DELETED in context.schema.names
        self._merge = MergeStatements(
            plan=plan,
            has_deleted=has_deleted,
            deletes=sink.mode == "mirror",
            is_key_exact=plan.has_exact_key(connection),
        )
        self._columns = [*plan.columns, *([DELETED] if has_deleted else [])]
        is_binary_compatible = plan.takes_binary(connection)
        schema = pa.schema([(name, context.schema.field(name).type) for name in self._columns])
        self._schema = schema.append(pa.field(POSITION, pa.int64()))
        self._form = encode_binary if is_binary_compatible else encode_csv
        self._format = sql.SQL("binary" if is_binary_compatible else "csv")

    def create_staging(self) -> None:
        """Create the staging table, which is dropped with the connection."""
        if self._is_merged:
            self._connection.execute(self._merge.create_staging(on_commit=sql.SQL("DELETE ROWS")))

    def last_batch(self) -> int | None:
        """The batch of the marker, or None."""
        with _translated_errors(self._sink.name):
            marker = self._read_marker()
        return marker[1] if marker is not None and marker[0] == self._context.generation else None

    def write(self, batch: int, rows: pa.Table) -> None:
        """Write the rows and the batch marker in one transaction."""
        with _translated_errors(self._sink.name), self._connection.transaction():
            if self._set_marker(batch):
                staged = self._staged(rows)
                if not self._write_in_bulk(staged):
                    self._write_row_by_row(staged)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _set_marker(self, batch: int) -> bool:
        """Set the batch marker; False if the batch was written already."""
        claimed = self._connection.execute(
            sql.SQL(
                "INSERT INTO {markers} AS marker (job, target, generation, batch) VALUES (%s, %s, %s, %s) "
                "ON CONFLICT (job, target) DO UPDATE SET generation = excluded.generation, "
                "batch = excluded.batch, written_at = now() "
                "WHERE (marker.generation, marker.batch) < (excluded.generation, excluded.batch)"
            ).format(markers=self._plan.markers),
            [self._context.job, self._sink.name, self._context.generation, batch],
        )
        if claimed.rowcount:
            return True
        check_not_fenced(self._read_marker(), self._context, self._sink.name)
        return False

    def _read_marker(self) -> tuple[int, int] | None:
        query = sql.SQL("SELECT generation, batch FROM {} WHERE job = %s AND target = %s")
        markers = self._connection.execute(
            query.format(self._plan.markers), [self._context.job, self._sink.name]
        ).fetchall()
        return markers[0] if markers else None

    def _staged(self, rows: pa.Table) -> pa.Table:
        """The last row of each key, sorted by key, with its position in the batch."""
        indexes = sort_by_key(rows, self._plan.key, last_of_each_key(rows, self._plan.key))
        staged = rows.select(self._columns)
        if self._plan.key:
            staged = staged.take(indexes)
        return staged.append_column(POSITION, indexes).cast(self._schema)

    def _write_in_bulk(self, staged: pa.Table) -> bool:
        """Write all rows at once; False if the database rejects them, and nothing was written."""
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                if self._is_merged:
                    self._copy(cursor, STAGING, staged)
                else:
                    self._copy(cursor, self._plan.name, staged.drop_columns(POSITION))
                for statement in self._statements():
                    # Not prepared: the plan for a small table would be kept when the table has grown.
                    cursor.execute(statement, prepare=False)
                cursor.execute(CHECK_DEFERRED)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(ROW_BY_ROW_ERRORS):
                raise
            return False
        return True

    def _statements(self) -> Iterator[sql.Composed]:
        """The statements that merge the staged rows into the table."""
        if not self._is_merged:
            return
        if self._merge.deletes and self._merge.has_deleted:
            yield self._merge.delete()
        yield self._merge.upsert()

    def _write_row_by_row(self, staged: pa.Table) -> None:
        """Write the rows one by one on the server; raises `RowsRejected` for rows that it rejects."""
        with self._connection.cursor() as cursor:
            if not self._is_merged:
                cursor.execute(self._merge.create_staging(on_commit=sql.SQL("DROP")))
            cursor.execute(CREATE_REJECTED)
            try:
                with self._connection.transaction():
                    self._copy(cursor, STAGING, staged)
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(ROW_ERRORS):
                    raise
                self._parse_row_by_row(cursor, staged)
            cursor.execute(CHECK_DEFERRED)
            cursor.execute(self._merge.merge_row_by_row(), prepare=False)
            rejected = cursor.execute(sql.SQL("SELECT * FROM {}").format(REJECTED)).fetchall()
        if rejected:
            is_retryable = any(code in RETRYABLE_VIOLATIONS for _, code, _ in rejected)
            raise RowsRejected(
                {position: reason for position, _, reason in sorted(rejected)}, retryable=is_retryable
            )

    def _parse_row_by_row(self, cursor: psycopg.Cursor[Any], staged: pa.Table) -> None:
        """Stage the rows whose values the columns can hold; the others are rejected."""
        cursor.execute(CREATE_LITERALS)
        with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(LITERALS)) as copy:
            for index, position in enumerate(staged[POSITION].to_pylist()):
                copy.write_row((position, encode_composite(staged.slice(index, 1))))
        cursor.execute(self._merge.parse_row_by_row(), prepare=False)

    def _copy(self, cursor: psycopg.Cursor[Any], table: sql.Identifier, rows: pa.Table) -> None:
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            table, listed(rows.column_names), self._format
        )
        with cursor.copy(command) as copy:
            copy.write(self._form(rows))


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    """Raise `TargetUnavailable` and `IncompatibleTarget` for errors of the server."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(RETRYABLE_ERRORS):
            raise
        raise TargetUnavailable(f"{name}: {_first_line(error)}") from error
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise IncompatibleTarget(f"{name}: {_first_line(error)}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise IncompatibleTarget(
            f"{name}: {_first_line(error)}. The user of the URL needs the privileges to write the table and "
            f"{MARKERS}, and to create them if they do not exist."
        ) from error


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).strip()
