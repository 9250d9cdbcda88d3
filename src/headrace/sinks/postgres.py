"""The declaration of a PostgreSQL table as an output: `into=postgres("revenue", key="product")`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import Misuse
from headrace.settings import Settings
from headrace.sinks.sink import DEFAULT_MAX_ATTEMPTS, validate_key, validate_mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.sink import Mode, SinkContext, SinkWriter, StagingContext, TaskStager


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink:
    """A table that a job writes; see `postgres`."""

    table: str
    """The name of the table, with its schema and a dot if it is not on the search path."""
    key: tuple[str, ...]
    mode: Mode
    url: str | None = field(default=None, repr=False)
    """The URL of the database, which may contain a password and is not printed."""
    max_attempts: int = DEFAULT_MAX_ATTEMPTS

    @property
    def name(self) -> str:
        """The name for display."""
        return f"postgres {self.table}"

    @property
    def reads_staged_rows(self) -> bool:
        """The rows are needed to name those that the table rejects, and after a crash of the server."""
        return True

    def open(self, context: SinkContext) -> SinkWriter:
        """Connect; create the table, or check that it can hold the rows."""
        from headrace.sinks.postgres_writer import open_writer

        return open_writer(self, self._address(), context)

    def open_stager(self, context: StagingContext) -> TaskStager:
        """Connect from a task, which copies its rows into staging tables."""
        from headrace.sinks.postgres_writer import open_stager

        return open_stager(self, self._address(), context)

    def discard(self, context: SinkContext, keep: Sequence[str]) -> None:
        """Drop staging tables that no batch needs."""
        from headrace.sinks.postgres_writer import discard_staged

        discard_staged(self, self._address(), context.job, keep)

    def _address(self) -> str:
        address = Settings.read().url("postgres", self.url)
        if address is None:
            raise Misuse(
                f"{self.name}: no database is configured: set HEADRACE_POSTGRES in the environment (for "
                "example postgresql://user@host/shop), or url under [postgres] in headrace.toml, or pass "
                "url=."
            )
        return address


def postgres(
    table: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode | None = None,
    url: str | None = None,
    max_attempts: int = DEFAULT_MAX_ATTEMPTS,
) -> PostgresSink:
    """A PostgreSQL table as an output of a job, with each row written exactly once.

    With a `key`, a row replaces the row with the same key (`mode="upsert"`); with `mode="mirror"`, rows with
    `_deleted` also delete their key; without a key every row is inserted (`mode="append"`). The table is
    created if it does not exist, and missing columns are added. Rows that it rejects become dead letters of
    the job, after `max_attempts` attempts if a later attempt may succeed.

    Without `url`, the database is that of `HEADRACE_POSTGRES` or `headrace.toml`, so that no program contains
    a password.

    >>> postgres("revenue", key=["window_start", "product"]).mode
    'upsert'
    """
    what = f"postgres {table!r}"
    if not table or len(table.split(".")) > 2 or not all(table.split(".")):
        raise Misuse(f"{what}: write the name of the table, or schema.table.")
    if max_attempts < 1:
        raise Misuse(f"{what}: max_attempts must be at least 1.")
    columns = validate_key(key, what)
    return PostgresSink(
        table=table, key=columns, mode=validate_mode(mode, columns, what), url=url, max_attempts=max_attempts
    )
