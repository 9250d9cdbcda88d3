"""Rows into a table of PostgreSQL: `into=postgres("revenue", key="product")`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.table_sink import USUAL_TRIES, checked_key, checked_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.sink import Place, Target
    from headrace.sinks.table_sink import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink:
    """A table that a job writes; see `postgres`."""

    table: str
    """Its name, with that of its schema before a dot if it is not on the search path."""
    key: tuple[str, ...]
    mode: Mode
    url: str | None = field(default=None, repr=False)
    """The database's address; it may hold a password, and is not printed."""
    tries: int = USUAL_TRIES

    @property
    def name(self) -> str:
        """What people call it."""
        return f"postgres {self.table}"

    def open(self, place: Place) -> Target:
        """Connect; make the table, or check that it can take the rows."""
        from headrace.sinks.postgres_writer import open_target

        return open_target(self, self._address(), place)

    def _address(self) -> str:
        address = Settings.read().url("postgres", self.url)
        if address is None:
            raise Misuse(
                f"{self.name}: no database is named: set HEADRACE_POSTGRES in the environment (for example "
                "postgresql://user@host/shop), or url under [postgres] in headrace.toml, or give url=…."
            )
        return address


def postgres(
    table: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode | None = None,
    url: str | None = None,
    tries: int = USUAL_TRIES,
) -> PostgresSink:
    """A table of PostgreSQL for a job to write into, each row exactly once.

    With a `key`, a row takes the place of the one with the same key (`mode="upsert"`); with `mode="mirror"`
    rows whose column `_deleted` is true delete theirs; without a key every row is added (`mode="append"`).
    The table is made when it is not there, and gets the columns that it lacks. Rows that it does not take go
    to the job's dead letters, after `tries` tries where a later one might help.

    Without `url` the database is the one that `HEADRACE_POSTGRES` or `headrace.toml` names, so that no
    program holds a password.

    >>> postgres("revenue", key=["window_start", "product"]).mode
    'upsert'
    """
    what = f"postgres {table!r}"
    if not table or len(table.split(".")) > 2 or not all(table.split(".")):
        raise Misuse(f"{what}: write the table's name, or its schema's and its own with a dot between.")
    if tries < 1:
        raise Misuse(f"{what}: tries is at least 1.")
    columns = checked_key(key, what)
    return PostgresSink(
        table=table, key=columns, mode=checked_mode(mode, columns, what), url=url, tries=tries
    )
