"""The statements that bring staged rows into their table.

```text
 MERGE                        looks a key up in the index, and updates or inserts: one look, one change
 INSERT … ON CONFLICT         tries to insert, locks the row that is in the way, and updates it
```

MERGE takes less time where rows are new, but fails where somebody else inserts one of the keys meanwhile. So
it is for the first try, and ON CONFLICT, which waits for the other and then updates its row, for those behind
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from headrace.sinks.postgres_table import listed
from headrace.sinks.sink import DELETED

if TYPE_CHECKING:
    from headrace.sinks.postgres_table import TablePlan

STAGING: Final = sql.Identifier("pg_temp", "headrace_staging")
MERGE_SINCE: Final = 150_000
"""The first version of PostgreSQL that has MERGE."""
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
    return sql.SQL("DELETE FROM {} there USING {} gone WHERE gone.{} AND {}").format(
        plan.name, STAGING, sql.Identifier(DELETED), _same(plan, "gone")
    )


def merge(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """Updates or inserts the others; fails where a key is inserted by somebody else meanwhile."""
    names = list(plan.columns)
    values = sql.SQL(", ").join(sql.Identifier("coming", name) for name in names)
    return sql.SQL(
        "MERGE INTO {} there USING ({}) coming ON {} "
        "WHEN MATCHED THEN {} WHEN NOT MATCHED THEN INSERT ({}) VALUES ({})"
    ).format(
        plan.name,
        _kept(plan, deletes=deletes),
        _same(plan, "coming"),
        _change(plan, "coming", update="UPDATE SET "),
        listed(names),
        values,
    )


def insertion(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """Inserts or updates the others, whoever else writes the table."""
    return sql.SQL("INSERT INTO {} ({}) {} ON CONFLICT ({}) {}").format(
        plan.name,
        listed(list(plan.columns)),
        _kept(plan, deletes=deletes),
        listed(plan.key),
        _change(plan, "excluded", update="DO UPDATE SET "),
    )


def _kept(plan: TablePlan, *, deletes: bool) -> sql.Composed:
    """The staged rows that are not to go."""
    where = sql.SQL(" WHERE {} IS NOT TRUE").format(sql.Identifier(DELETED)) if deletes else sql.SQL("")
    return sql.SQL("SELECT {} FROM {}{}").format(listed(list(plan.columns)), STAGING, where)


def _same(plan: TablePlan, other: str) -> sql.Composed:
    pairs = ((sql.Identifier(name), sql.Identifier(other, name)) for name in plan.key)
    return sql.SQL(" AND ").join(sql.SQL("there.{} = {}").format(*pair) for pair in pairs)


def _change(plan: TablePlan, other: str, *, update: LiteralString) -> sql.Composable:
    """What becomes of a row that is there: nothing, if the key is all that it has."""
    changes = [
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Identifier(other, name))
        for name in plan.columns
        if name not in plan.key
    ]
    return sql.SQL(update) + sql.SQL(", ").join(changes) if changes else sql.SQL("DO NOTHING")
