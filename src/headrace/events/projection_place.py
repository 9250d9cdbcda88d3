"""Where projections keep their tables: the seam between what applies events and the database.

A place holds the tables of one projection and, in a table beside them, how far it has come. Both change in
one transaction, so that each event counts once. A rebuild fills a second place, which then becomes the first:
readers see the old tables, and then the new ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from headrace.client.partition import TopicPartition

PROGRESS: Final = "headrace_progress"


class Tables(Protocol):
    """An open connection to the tables of a projection. For one thread."""

    db: Any
    """The database's own connection."""

    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next event of each partition; none of those that have none applied yet."""
        ...

    def move(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note how far events are applied, within the transaction that is open."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing of what happens inside; nobody else applies events meanwhile."""
        ...

    def query(self, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        ...

    def close(self) -> None:
        """Let go of the database."""
        ...


class Place(Protocol):
    """Where the tables of a projection are."""

    @property
    def name(self) -> str:
        """What people call it; two of one name are one."""
        ...

    def open(self, tables: str) -> Tables:
        """A connection; the tables are made, by these statements, where they are not there."""
        ...

    def beside(self) -> Place:
        """An empty place, for a rebuild."""
        ...

    def become(self, fresh: Place, tables: str) -> None:
        """Have what is in `fresh`, tables and progress, instead of what is here; `fresh` is gone then."""
        ...

    def is_temporary(self, fault: BaseException) -> bool:
        """Whether a fault of the database may pass: it is away, starting, full, or was in conflict."""
        ...
