"""Writes batches to a PostgreSQL table, each in one transaction, safely with other concurrent writers.

```text
 task     COPY … staging_1      an unlogged table for each large part, in the order of the key
 driver   BEGIN
            batch marker (job, batch)   locks the row of the job's marker, which serializes its writers
            SELECT count(*) …           are all rows there? A crash of the server empties unlogged tables
            COPY … staging              small parts, and those that tasks could not copy: temporary
            DELETE … USING staging_n    (mirror)
            INSERT … ON CONFLICT        one statement for each part: the last row of a key wins
          COMMIT
```

In append mode, the driver copies rows directly into the table.

If PostgreSQL rejects the batch, a PL/pgSQL block merges the rows of the rejected parts one by one, each in a
subtransaction, and collects the rejected rows with their reasons: a part of n bad rows costs one pass, not n
statements of the client. Then the transaction is rolled back, and the rows are raised as `RowsRejected`.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.sinks.postgres_copy import encode_binary, encode_composite, encode_csv
from headrace.sinks.postgres_table import MARKERS, PostgresTable, is_existing, listed
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
    from collections.abc import Callable, Iterator, Sequence

    from headrace.sinks.postgres import PostgresSink
    from headrace.sinks.sink import SinkContext, StagingContext
    from headrace.sinks.staging import Chunk, StagedBatch

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
        """Creates the temporary staging table with the types and collations of the target table."""
        return sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT {} AS {} WITH NO DATA").format(
            STAGING, on_commit, self._columns_of_staging()
        )

    def create_part(self, name: sql.Identifier) -> sql.Composed:
        """Creates the staging table of a part, which other connections see."""
        return sql.SQL("CREATE UNLOGGED TABLE {} AS {} WITH NO DATA").format(name, self._columns_of_staging())

    def _columns_of_staging(self) -> sql.Composed:
        columns = listed(list(self.plan.columns))
        if self.has_deleted:
            columns += sql.SQL(", false AS {}").format(sql.Identifier(DELETED))
        return sql.SQL("SELECT {}, 0::bigint AS {} FROM {}").format(
            columns, sql.Identifier(POSITION), self.plan.name
        )

    def merge(self, source: sql.Identifier = STAGING) -> Iterator[sql.Composed]:
        """The statements that merge the rows of a staging table into the table."""
        if self.deletes and self.has_deleted:
            yield self._delete(source)
        yield self._upsert(source)

    def _delete(self, source: sql.Identifier) -> sql.Composed:
        """Deletes the keys of staged rows with `_deleted`."""
        return sql.SQL("DELETE FROM {} there USING ({}) given WHERE given.{} AND {}").format(
            self.plan.name, self._last_of_each_key(source), sql.Identifier(DELETED), self._same_key()
        )

    def _upsert(self, source: sql.Identifier) -> sql.Composed:
        """Inserts or updates the staged rows without `_deleted`."""
        kept = sql.SQL(" WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED))
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) given{}{}").format(
            self.plan.name,
            listed(list(self.plan.columns)),
            listed(list(self.plan.columns)),
            self._last_of_each_key(source),
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
            self._last_of_each_key(STAGING), sql.Identifier(POSITION)
        )
        return _row_by_row(rows, statement)

    def _last_of_each_key(self, source: sql.Identifier) -> sql.Composed:
        """The last staged row of each key, by the equality of the database.

        Arrow has removed duplicates by its own equality. Other keys may be equal in the database (0.0 and
        -0.0, a uuid in upper case, a case-insensitive collation). A null is not equal to a null.
        """
        if not self.plan.key or self.is_key_exact:
            return sql.SQL("SELECT * FROM {}").format(source)
        key = sql.SQL(", ").join(
            sql.SQL("{0}, CASE WHEN {0} IS NULL THEN {1} END").format(
                sql.Identifier(name), sql.Identifier(POSITION)
            )
            for name in self.plan.key
        )
        return sql.SQL("SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, {2} DESC").format(
            key, source, sql.Identifier(POSITION)
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
STAGING_TABLES: Final = """
    SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
    WHERE nspname = coalesce(%s, current_schema()) AND starts_with(relname, %s) AND relkind = 'r'
    AND relname <> ALL (%s::text[])
"""
CHECK_DEFERRED: Final = "SET CONSTRAINTS ALL IMMEDIATE"
"""Checks deferred constraints before the commit, where rejected rows can still be found."""


def open_writer(sink: PostgresSink, url: str, context: SinkContext) -> PostgresWriter:
    """Connect, and create or check the table."""
    with _translated_errors(sink.name):
        table = StagedTable.open(sink, url, context)
        try:
            writer = PostgresWriter(table, sink, context)
            writer.create_staging()
        except BaseException:
            table.connection.close()
            raise
        return writer


def open_stager(sink: PostgresSink, url: str, context: StagingContext) -> PostgresStager:
    """Connect from a task."""
    with _translated_errors(sink.name):
        return PostgresStager(StagedTable.open(sink, url, context), sink, context)


def _connect(url: str, sink: PostgresSink, job: str) -> psycopg.Connection[Any]:
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # The URL and psycopg's message may contain a password.
        raise IncompatibleTarget(
            f"{sink.name}: the URL is invalid: write postgresql://user:password@host:5432/database."
        ) from None
    options: dict[str, Any] = {**CONNECTION_OPTIONS, "application_name": f"headrace {job}", **given}
    return psycopg.connect(autocommit=True, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A connection to the table of a job, and how rows are staged for it."""

    connection: psycopg.Connection[Any]
    plan: PostgresTable
    merge: MergeStatements
    columns: tuple[str, ...]
    """The columns of a staging table, without the position."""
    schema: pa.Schema
    is_binary: bool

    @classmethod
    def open(cls, sink: PostgresSink, url: str, context: SinkContext | StagingContext) -> Self:
        """Connect, and create or check the table."""
        is_merged = sink.mode != "append"
        key = sink.key if is_merged else ()
        names = target_columns(context.schema, key, sink.mode, sink.name)
        kinds = {name: context.schema.field(name).type for name in names}
        plan = PostgresTable(table=sink.table, key=key, columns=kinds)
        connection = _connect(url, sink, context.job)
        try:
            connection.execute(SESSION)
            plan.prepare(connection)
            has_deleted = is_merged and DELETED in context.schema.names
            columns = (*names, *([DELETED] if has_deleted else []))
            schema = pa.schema([(name, context.schema.field(name).type) for name in columns])
            merge = MergeStatements(
                plan=plan,
                has_deleted=has_deleted,
                deletes=sink.mode == "mirror",
                is_key_exact=plan.has_exact_key(connection),
            )
            return cls(
                connection=connection,
                plan=plan,
                merge=merge,
                columns=columns,
                schema=schema.append(pa.field(POSITION, pa.int64())),
                is_binary=plan.takes_binary(connection),
            )
        except BaseException:
            connection.close()
            raise

    def staged(self, rows: pa.Table, ordinals: pa.Array) -> pa.Table:
        """The last row of each key, sorted by key, with its position in the batch."""
        staged = rows.select(list(self.columns)).append_column(POSITION, ordinals)
        if self.plan.key:
            indexes = last_of_each_key(rows, self.plan.key)
            staged = staged.take(sort_by_key(rows, self.plan.key, indexes))
        return staged.cast(self.schema)

    def copy(self, cursor: psycopg.Cursor[Any], table: sql.Identifier, rows: pa.Table) -> None:
        """Copy staged rows into a table."""
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            table, listed(rows.column_names), sql.SQL("binary" if self.is_binary else "csv")
        )
        with cursor.copy(command) as copy:
            copy.write(encode_binary(rows) if self.is_binary else encode_csv(rows))


class PostgresStager:
    """Copies the rows of a task into staging tables that the driver merges."""

    def __init__(self, table: StagedTable, sink: PostgresSink, context: StagingContext) -> None:
        self._table = table
        self._sink = sink
        self._prefix = staging_prefix(context.job, sink)
        # The driver counts what is there: nothing is lost with a commit that the server has not synced.
        table.connection.execute("SET synchronous_commit = off")

    def stage(self, rows: pa.Table) -> str | None:
        """Copy rows into a new table; None if a column cannot hold a value."""
        name = f"{self._prefix}{uuid4().hex[:16]}"
        target = _in_schema_of(self._sink, name)
        staged = self._table.staged(rows, pa.array(np.arange(len(rows))))
        connection = self._table.connection
        with _translated_errors(self._sink.name):
            try:
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.execute(self._table.merge.create_part(target))
                    self._table.copy(cursor, target, staged)
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(ROW_ERRORS):
                    raise
                return None
        return f"{name} {len(staged)}"

    def close(self) -> None:
        """Close the connection."""
        self._table.connection.close()


def discard_staged(sink: PostgresSink, url: str, job: str, keep: Sequence[str]) -> None:
    """Drop the staging tables of a job, except for those of these tokens, and for those still in use."""
    kept = [token.partition(" ")[0] for token in keep]
    with _translated_errors(sink.name), _connect(url, sink, job) as connection:
        connection.execute("SET lock_timeout = '1s'")
        schema = sink.table.rpartition(".")[0] or None
        found = connection.execute(STAGING_TABLES, [schema, staging_prefix(job, sink), kept]).fetchall()
        for names in found:
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*names)))


def staging_prefix(job: str, sink: PostgresSink) -> str:
    """How the names of the staging tables of a job and sink begin."""
    digest = hashlib.sha256(f"{job}\0{sink.name}".encode()).hexdigest()
    return f"headrace_staging_{digest[:12]}_"


def _in_schema_of(sink: PostgresSink, name: str) -> sql.Identifier:
    return sql.Identifier(*sink.table.split(".")[:-1], name)


class PostgresWriter:
    """Commits the batches of one job to a table."""

    def __init__(self, table: StagedTable, sink: PostgresSink, context: SinkContext) -> None:
        self._table = table
        self._connection = table.connection
        self._plan = table.plan
        self._merge = table.merge
        self._sink = sink
        self._context = context
        self._is_merged = sink.mode != "append"
        self._is_staging_used = False

    def create_staging(self) -> None:
        """Create the staging table of the driver, which is dropped with the connection."""
        if self._is_merged:
            self._connection.execute(self._merge.create_staging(on_commit=sql.SQL("DELETE ROWS")))

    def last_batch(self) -> int | None:
        """The batch of the marker, or None."""
        with _translated_errors(self._sink.name):
            marker = self._read_marker()
        return marker[1] if marker is not None and marker[0] == self._context.generation else None

    def commit(self, batch: int, staged: StagedBatch) -> None:
        """Write the rows and the batch marker in one transaction."""
        with _translated_errors(self._sink.name), self._connection.transaction():
            if self._set_marker(batch) and not self._write_in_bulk(staged):
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

    def _write_in_bulk(self, staged: StagedBatch) -> bool:
        """Write all rows at once; False if the database rejects them, and nothing was written."""

        def write(cursor: psycopg.Cursor[Any]) -> None:
            for chunk in staged:
                self._write_chunk(cursor, chunk)
            cursor.execute(CHECK_DEFERRED)

        self._is_staging_used = False
        return self._try(write)

    def _write_chunk(self, cursor: psycopg.Cursor[Any], chunk: Chunk) -> None:
        source = self._prepared(cursor, chunk)
        if source is None and not self._is_merged:
            self._table.copy(cursor, self._plan.name, self._rows_of(chunk).drop_columns(POSITION))
            return
        if source is None:
            source = self._copy_to_staging(cursor, self._rows_of(chunk))
        for statement in self._merge.merge(source):
            # Not prepared: the plan for a small table would be kept when the table has grown.
            cursor.execute(statement, prepare=False)

    def _prepared(self, cursor: psycopg.Cursor[Any], chunk: Chunk) -> sql.Identifier | None:
        """The staging table that a task has filled; None if it is missing, or has lost its rows."""
        if chunk.token is None:
            return None
        name, _, count = chunk.token.partition(" ")
        table = _in_schema_of(self._sink, name)
        if not is_existing(table, cursor.connection):
            return None
        found = cursor.execute(sql.SQL("SELECT count(*) FROM {}").format(table)).fetchone()
        return table if found == (int(count),) else None

    def _rows_of(self, chunk: Chunk) -> pa.Table:
        return self._table.staged(chunk.read(), chunk.ordinals)

    def _copy_to_staging(self, cursor: psycopg.Cursor[Any], rows: pa.Table) -> sql.Identifier:
        if self._is_staging_used:
            cursor.execute(sql.SQL("TRUNCATE {}").format(STAGING))
        self._table.copy(cursor, STAGING, rows)
        self._is_staging_used = True
        return STAGING

    def _write_row_by_row(self, staged: StagedBatch) -> None:
        """Write the rows of rejected parts one by one; raises `RowsRejected` for rows that are rejected."""
        chunks = list(staged)
        self._is_staging_used = False
        with self._connection.cursor() as cursor:
            if not self._is_merged:
                cursor.execute(self._merge.create_staging(on_commit=sql.SQL("DROP")))
            cursor.execute(CREATE_REJECTED)
            cursor.execute(CHECK_DEFERRED)
            for chunk in chunks:
                if len(chunks) == 1 or not self._try(partial(self._write_chunk, chunk=chunk)):
                    self._write_chunk_row_by_row(cursor, self._rows_of(chunk))
            rejected = cursor.execute(sql.SQL("SELECT * FROM {}").format(REJECTED)).fetchall()
        if rejected:
            is_retryable = any(code in RETRYABLE_VIOLATIONS for _, code, _ in rejected)
            raise RowsRejected(
                {position: reason for position, _, reason in sorted(rejected)}, retryable=is_retryable
            )

    def _write_chunk_row_by_row(self, cursor: psycopg.Cursor[Any], rows: pa.Table) -> None:
        cursor.execute(sql.SQL("TRUNCATE {}").format(STAGING))
        self._is_staging_used = True
        try:
            with self._connection.transaction():
                self._table.copy(cursor, STAGING, rows)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(ROW_ERRORS):
                raise
            self._parse_row_by_row(cursor, rows)
        cursor.execute(self._merge.merge_row_by_row(), prepare=False)

    def _parse_row_by_row(self, cursor: psycopg.Cursor[Any], staged: pa.Table) -> None:
        """Stage the rows whose values the columns can hold; the others are rejected."""
        cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(LITERALS))
        cursor.execute(CREATE_LITERALS)
        with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(LITERALS)) as copy:
            for index, position in enumerate(staged[POSITION].to_pylist()):
                copy.write_row((position, encode_composite(staged.slice(index, 1))))
        cursor.execute(self._merge.parse_row_by_row(), prepare=False)

    def _try(self, write: Callable[[psycopg.Cursor[Any]], None]) -> bool:
        """Write in a savepoint; False if the database rejects rows, and it was rolled back."""
        was_staging_used = self._is_staging_used
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                write(cursor)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(ROW_BY_ROW_ERRORS):
                raise
            self._is_staging_used = was_staging_used
            return False
        return True


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
