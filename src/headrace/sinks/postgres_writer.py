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

When PostgreSQL refuses the rows, the server merges them one by one, and says which ones it does not take.
Then everything is rolled back, and the caller gets the refused rows with the reasons.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.sinks.postgres_copy import binary_of, composite_of, csv_of
from headrace.sinks.postgres_table import TablePlan, listed
from headrace.sinks.rows import in_order_of_key, last_of_each_key
from headrace.sinks.sink import DELETED, Refused, Unavailable, Unsuitable
from headrace.sinks.table_sink import refuse_if_superseded, written_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.sinks.postgres import PostgresSink
    from headrace.sinks.sink import Place

STAGING: Final = sql.Identifier("pg_temp", "headrace_staging")
LITERALS: Final = sql.Identifier("pg_temp", "headrace_literals")
"""Staged rows as composite literals, each of which is parsed on its own."""
REFUSED: Final = sql.Identifier("pg_temp", "headrace_refused")
POSITION: Final = "_headrace_position"
"""The column of the staging table that holds a row's index in the batch: of equal keys the last counts."""
REFUSALS: Final = ("22", "23", "44", "54", "P0")
"""Classes of SQLSTATE that are about the rows: values, constraints, views, sizes, exceptions of triggers."""
BY_INDEX: Final = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
"""What is staged is small beside the table, and in the order of its key: each key is looked up in the index.
PostgreSQL has no statistics of a table that was filled just now: it might read the whole of the other, or
compile a statement that is run once."""


CREATE_REFUSED: Final = sql.SQL(
    "CREATE TEMPORARY TABLE {} ({} bigint, code text, reason text) ON COMMIT DROP"
).format(REFUSED, sql.Identifier(POSITION))
CREATE_LITERALS: Final = sql.SQL(
    "CREATE TEMPORARY TABLE {} ({} bigint, literal bytea) ON COMMIT DROP"
).format(LITERALS, sql.Identifier(POSITION))
"""Bytes, because a row may hold what is not valid text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """The statements for one table."""

    plan: TablePlan
    has_deleted: bool
    """Whether the rows have the column `_deleted`."""
    deletes: bool
    """Whether rows that are marked as deleted delete theirs; otherwise they are skipped."""
    is_key_exact: bool
    """Whether keys that differ for Arrow differ for the database too."""

    def create_staging(self, *, on_commit: sql.SQL) -> sql.Composed:
        """Creates the table that rows are copied to, with the types and collations of the target table."""
        columns = listed(list(self.plan.columns))
        if self.has_deleted:
            columns += sql.SQL(", false AS {}").format(sql.Identifier(DELETED))
        return sql.SQL(
            "CREATE TEMPORARY TABLE {} ON COMMIT {} AS SELECT {}, 0::bigint AS {} FROM {} WITH NO DATA"
        ).format(STAGING, on_commit, columns, sql.Identifier(POSITION), self.plan.name)

    def delete(self) -> sql.Composed:
        """Deletes the rows whose staged row is marked as deleted."""
        return sql.SQL("DELETE FROM {} there USING ({}) given WHERE given.{} AND {}").format(
            self.plan.name, self._last_of_each_key(), sql.Identifier(DELETED), self._same_key()
        )

    def upsert(self) -> sql.Composed:
        """Inserts or updates the staged rows that are not marked as deleted."""
        kept = sql.SQL(" WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED))
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) given{}{}").format(
            self.plan.name,
            listed(list(self.plan.columns)),
            listed(list(self.plan.columns)),
            self._last_of_each_key(),
            kept if self.has_deleted else sql.SQL(""),
            self._on_conflict(),
        )

    def parse_one_by_one(self) -> sql.Composed:
        """Parses each literal by the input functions of the columns, as COPY does, into the staging table."""
        rows = sql.SQL("SELECT * FROM {} ORDER BY {}").format(LITERALS, sql.Identifier(POSITION))
        statement = sql.SQL(
            "staged := convert_from(given.literal, 'UTF8')::{0}; INSERT INTO {0} SELECT staged.*;"
        )
        return _one_by_one(rows, statement.format(STAGING))

    def merge_one_by_one(self) -> sql.Composed:
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
        return _one_by_one(rows, statement)

    def _last_of_each_key(self) -> sql.Composed:
        """The staged rows that count: of rows whose keys are equal to the database, the last one.

        Arrow has removed the rows whose keys are equal to Arrow. Where the database may take others for equal
        (0.0 and -0.0, a uuid in two spellings, a collation that ignores case), it decides. A null equals
        nothing, not even a null.
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
        """What happens to a row that is there: nothing, if the key is all that it has."""
        if not self.plan.key:
            return sql.SQL("")
        changes = [
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
            for name in self.plan.columns
            if name not in self.plan.key
        ]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changes) if changes else sql.SQL("NOTHING")
        return sql.SQL(" ON CONFLICT ({}) DO {}").format(listed(self.plan.key), action)


def _one_by_one(rows: sql.Composable, statement: sql.Composable) -> sql.Composed:
    """A loop over rows in which each one is taken or refused on its own."""
    return sql.SQL(
        """DO $headrace$ #variable_conflict use_column
        DECLARE given record; staged {staging};
        BEGIN FOR given IN {rows} LOOP
            BEGIN {statement}
            EXCEPTION WHEN OTHERS THEN
                IF left(SQLSTATE, 2) <> ALL ({refusals}) THEN RAISE; END IF;
                INSERT INTO {refused} VALUES (given.{position}, SQLSTATE, SQLERRM);
            END;
        END LOOP; END $headrace$"""
    ).format(
        staging=STAGING,
        rows=rows,
        statement=statement,
        refusals=sql.Literal(list(REFUSALS)),
        refused=REFUSED,
        position=sql.Identifier(POSITION),
    )


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
ONE_BY_ONE: Final = (*REFUSALS, "21000")
"""What is tried again row by row. 21000: two rows of the batch have one key to the unique index, although not
to the types of its columns, because the index has another collation or a trigger changes the key."""
PERHAPS_LATER: Final = ("23503", "23505", "23P01")
"""Constraints that look at other rows, which may come or go: foreign key, unique, exclusion."""
NOT_NOW: Final = ("25006", "40", "53", "55006", "55P", "57", "58", "08")
"""Read only (a standby), rollbacks, resources, locks, shutdowns, the system, connections."""
CHECK_NOW: Final = "SET CONSTRAINTS ALL IMMEDIATE"
"""Deferred constraints are checked before the commit, where refused rows can still be found."""


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
            target.create_staging()
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
        self._is_merged = sink.mode != "append"
        has_deleted = self._is_merged and DELETED in place.schema.names
        self._merge = Merge(
            plan=plan,
            has_deleted=has_deleted,
            deletes=sink.mode == "mirror",
            is_key_exact=plan.has_exact_key(connection),
        )
        self._columns = [*plan.columns, *([DELETED] if has_deleted else [])]
        is_binary = plan.takes_binary(connection)
        schema = pa.schema([(name, place.schema.field(name).type) for name in self._columns])
        self._schema = schema.append(pa.field(POSITION, pa.int64()))
        self._form = binary_of if is_binary else csv_of
        self._format = sql.SQL("binary" if is_binary else "csv")

    def create_staging(self) -> None:
        """Create the table that rows are copied to; it goes with the connection."""
        if self._is_merged:
            self._connection.execute(self._merge.create_staging(on_commit=sql.SQL("DELETE ROWS")))

    def newest(self) -> int | None:
        """The batch that the mark names."""
        with _faults(self._sink.name):
            mark = self._mark()
        return mark[1] if mark is not None and mark[0] == self._place.generation else None

    def write(self, batch: int, rows: pa.Table) -> None:
        """Rows and mark in one transaction."""
        with _faults(self._sink.name), self._connection.transaction():
            if self._claim(batch):
                staged = self._staged(rows)
                if not self._write_at_once(staged):
                    self._write_one_by_one(staged)

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

    def _staged(self, rows: pa.Table) -> pa.Table:
        """The rows that count, in the order of their keys, each with its position in the batch."""
        indexes = in_order_of_key(rows, self._plan.key, last_of_each_key(rows, self._plan.key))
        staged = rows.select(self._columns)
        if self._plan.key:
            staged = staged.take(indexes)
        return staged.append_column(POSITION, indexes).cast(self._schema)

    def _write_at_once(self, staged: pa.Table) -> bool:
        """Write all rows by one statement; False where the database refuses that, and nothing is written."""
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                if self._is_merged:
                    self._copy(cursor, STAGING, staged)
                else:
                    self._copy(cursor, self._plan.name, staged.drop_columns(POSITION))
                for statement in self._statements():
                    # Not prepared: a plan that was made for a small table would be kept when it has grown.
                    cursor.execute(statement, prepare=False)
                cursor.execute(CHECK_NOW)
        except psycopg.Error as error:
            if not (error.sqlstate or "").startswith(ONE_BY_ONE):
                raise
            return False
        return True

    def _statements(self) -> Iterator[sql.Composed]:
        """What merges staged rows into the table."""
        if not self._is_merged:
            return
        if self._merge.deletes and self._merge.has_deleted:
            yield self._merge.delete()
        yield self._merge.upsert()

    def _write_one_by_one(self, staged: pa.Table) -> None:
        """Have the server write the rows one after the other; `Refused` for those that it does not take."""
        with self._connection.cursor() as cursor:
            if not self._is_merged:
                cursor.execute(self._merge.create_staging(on_commit=sql.SQL("DROP")))
            cursor.execute(CREATE_REFUSED)
            try:
                with self._connection.transaction():
                    self._copy(cursor, STAGING, staged)
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(REFUSALS):
                    raise
                self._parse_one_by_one(cursor, staged)
            cursor.execute(CHECK_NOW)
            cursor.execute(self._merge.merge_one_by_one(), prepare=False)
            refused = cursor.execute(sql.SQL("SELECT * FROM {}").format(REFUSED)).fetchall()
        if refused:
            is_final = not any(code in PERHAPS_LATER for _, code, _ in refused)
            raise Refused({position: reason for position, _, reason in sorted(refused)}, final=is_final)

    def _parse_one_by_one(self, cursor: psycopg.Cursor[Any], staged: pa.Table) -> None:
        """Stage the rows whose values the columns can hold."""
        cursor.execute(CREATE_LITERALS)
        with cursor.copy(sql.SQL("COPY {} FROM STDIN").format(LITERALS)) as copy:
            for index, position in enumerate(staged[POSITION].to_pylist()):
                copy.write_row((position, composite_of(staged.slice(index, 1))))
        cursor.execute(self._merge.parse_one_by_one(), prepare=False)

    def _copy(self, cursor: psycopg.Cursor[Any], table: sql.Identifier, rows: pa.Table) -> None:
        command = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT {})").format(
            table, listed(rows.column_names), self._format
        )
        with cursor.copy(command) as copy:
            copy.write(self._form(rows))


@contextmanager
def _faults(name: str) -> Iterator[None]:
    """A block in which what PostgreSQL says of itself is `Unavailable`."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
        if error.sqlstate is not None and not error.sqlstate.startswith(NOT_NOW):
            raise
        raise Unavailable(f"{name}: {_first_line(error)}") from error
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        raise Unsuitable(f"{name}: {_first_line(error)}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unsuitable(
            f"{name}: {_first_line(error)}. The user of its url has to be allowed to write the table and "
            "headrace_marks beside it, and to make them where they are missing."
        ) from error


def _first_line(error: psycopg.Error) -> str:
    return (error.diag.message_primary or str(error).strip().partition("\n")[0]).strip()
