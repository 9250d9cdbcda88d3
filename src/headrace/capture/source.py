"""The seam between a capture and the kind of database that it reads.

A source pushes: it reads its database's log and puts records into a sink, says where a transaction of the
database has ended, and when there is nothing to read just now. The sink decides when that becomes a
transaction of the log, and tells the source by `on_stored` from where on it would have to read again.

Positions are whole numbers that grow with the order of commits (PostgreSQL's log sequence numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import Progress, TableProgress

LARGEST_RECORD: Final = 64 << 20
"""The most bytes of a record's value."""


class Sink(Protocol):
    """Where a source writes."""

    def open_topic(self, topic: str, *, compacted: bool) -> Callable[[bytes | None, bytes | None, int], None]:
        """What takes the records of a topic, which is made if it is not there."""

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Write one record with headers to any topic."""

    def live_keys(self, topic: str) -> set[bytes]:
        """The keys of a topic whose newest record has a value, those of the open transaction included."""

    def end(self, position: int) -> None:
        """All up to here is whole: a transaction of the database has ended."""

    def rest(self) -> None:
        """There is nothing to read just now: what is whole is to be seen."""

    def table_done(self, name: str, table: TableProgress) -> None:
        """A table was written as it was at its position: store it, whole."""


class Source(Protocol):
    """One database, open."""

    def check(self) -> None:
        """Refuse a database that is not fit, or that another capture of this name reads."""

    def prepare(self, known: Progress | None) -> Progress:
        """What is known, if it can be gone on with; or a progress without a position.

        Raises `SlotGone` where what was to be read next is no longer there.
        """

    def begin(self, progress: Progress) -> Progress:
        """Where to begin: for one without a position, from now on the database keeps its log for us."""

    def open_topics(self, progress: Progress, sink: Sink) -> None:
        """Make the topics of the tables that no snapshot was taken of, before anybody else does."""

    def snapshot(self, progress: Progress, sink: Sink) -> None:
        """Write the tables that no snapshot was taken of; each is one transaction of the log."""

    def follow(self, progress: Progress, sink: Sink) -> None:
        """Write all changes after the progress, until stopped; with `once`, until those of now are there."""

    def on_stored(self, position: int) -> None:
        """All up to here is in the log for good: the database need not keep it."""

    def close(self) -> None:
        """Hang up."""
