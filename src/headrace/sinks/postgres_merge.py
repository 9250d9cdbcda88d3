"""The statements that bring staged rows into their table, whoever else writes it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import sql

from headrace.sinks.postgres_table import listed
from headrace.sinks.sink import DELETED

if TYPE_CHECKING:
    from headrace.sinks.postgres_table import TablePlan

STAGING: Final = sql.Identifier("pg_temp", "headrace_staging")
BY_INDEX: Final = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off"
"""What is staged is small beside the table, and in the order of its key: each key is looked up in the index.
PostgreSQL has no statistics of a table that was filled just now: it might read the whole of the other, or
compile a statement that is run once."""


def staging(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """Makes the table that rows are copied to; it goes with the connection."""
    columns = listed(list(plan.columns))
    if deletes:
        columns += sql.SQL(", false AS {}").format(sql.Identifier(DELETED))
    return sql.SQL(
        "CREATE TEMPORARY TABLE {} ON COMMIT DELETE ROWS AS SELECT {} FROM {} WITH NO DATA"
    ).format(STAGING, columns, plan.name)


def deletion(plan: TablePlan) -> sql.Composed:
    """Deletes the rows whose keys are to go."""
    same = sql.SQL(" AND ").join(
        sql.SQL("there.{0} = gone.{0}").format(sql.Identifier(name)) for name in plan.key
    )
    return sql.SQL("DELETE FROM {} there USING {} gone WHERE gone.{} AND {}").format(
        plan.name, STAGING, sql.Identifier(DELETED), same
    )


def insertion(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """Inserts or updates the others."""
    return sql.SQL("INSERT INTO {} ({}) {} ON CONFLICT ({}) DO {}").format(
        plan.name,
        listed(list(plan.columns)),
        _kept(plan, deletes=deletes),
        listed(plan.key),
        _change(plan),
    )


def _kept(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """The staged rows that are not to go."""
    where = sql.SQL(" WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED)) if deletes else sql.SQL("")
    return sql.SQL("SELECT {} FROM {}{}").format(listed(list(plan.columns)), STAGING, where)


def _change(plan: TablePlan) -> sql.Composable:
    """What becomes of a row that is there: nothing, if the key is all that it has."""
    changes = [
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
        for name in plan.columns
        if name not in plan.key
    ]
    return sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changes) if changes else sql.SQL("NOTHING")
