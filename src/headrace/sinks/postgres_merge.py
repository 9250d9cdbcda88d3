"""The statements that merge staged rows into their table while other programs may write it too.

`upsert` and `delete` merge all staged rows at once. When PostgreSQL refuses that, `parse_one_by_one` and
`merge_one_by_one` go through the rows inside the server, each row in a subtransaction, and collect those that
are refused: a batch of n bad rows costs one pass, not n statements of the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from headrace.sinks.postgres_table import listed
from headrace.sinks.sink import DELETED

if TYPE_CHECKING:
    from headrace.sinks.postgres_table import TablePlan

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
