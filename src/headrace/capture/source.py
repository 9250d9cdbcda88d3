"""The interface between a capture and the kind of database that it reads, and the errors of captures.

A source reads the log of its database and passes records to a `ChangeWriter`. It reports where each
transaction of the database ends, and when it has read everything. The writer decides when that becomes a
Kafka transaction, and reports the committed position by `on_committed`.

Positions are integers that grow in the order of commits (PostgreSQL's log sequence numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace.errors import HeadraceError, Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import CaptureOffset, CompletedSnapshot


LARGEST_RECORD: Final = 64 << 20
"""The most bytes of a record's value."""


class CaptureError(HeadraceError):
    """The capture cannot continue, and a retry would not help."""


class PreflightFailed(Misuse):
    """The database is not configured for capture, or a privilege is missing; the message has the remedy."""


class DatabaseUnavailable(HeadraceError):
    """The database does not respond; the capture retries."""


class SlotInUse(HeadraceError):
    """Another process reads the slot."""


class SlotLost(CaptureError):
    """The replication slot does not exist any more, or the server has removed its WAL."""


class WalLimitExceeded(CaptureError):
    """The slot retained more WAL than the limit, and was dropped."""


class CaptureStopped(HeadraceError):
    """The capture was requested to stop; not a failure."""


class UnknownCapture(HeadraceError):
    """No capture of that name has ever run on this broker."""


class CaptureFailed(HeadraceError):
    """A capture in its own process failed; the message is that of the process."""


class ChangeWriter(Protocol):
    """The destination of a source's records."""

    def open_topic(self, topic: str, *, compacted: bool) -> Callable[[bytes | None, bytes | None, int], None]:
        """A function that appends records to the topic, which is created if it does not exist."""

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
        """The keys whose latest record has a value, including records of the open transaction."""

    def set_traceparent(self, traceparent: str | None) -> None:
        """Give the records from now on this `traceparent` header, or none."""

    def end_transaction(self, position: int) -> None:
        """A transaction of the database has ended: all records up to this position are complete."""

    def advance(self, position: int) -> None:
        """The log of the database has nothing of the captured tables up to this position."""

    def commit_complete(self) -> None:
        """Commit all complete transactions; called when there is nothing more to read."""

    def finish_snapshot(self, name: str, table: CompletedSnapshot) -> None:
        """Commit the snapshot of a table, which is complete."""


class CaptureSource(Protocol):
    """A connection to one database."""

    def preflight(self) -> None:
        """Check configuration, privileges and tables; raises `PreflightFailed` or `SlotInUse`."""

    def prepare(self, known: CaptureOffset | None) -> CaptureOffset:
        """The offset to continue from; one without a position for a new capture.

        Raises `SlotLost` if the log after the offset is not available any more.
        """

    def create_slot(self, offset: CaptureOffset) -> CaptureOffset:
        """Create the replication slot; returns the offset with its position."""

    def create_topics(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Create the topics of tables without a snapshot."""

    def snapshot(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Write the snapshots that are missing; each table is one Kafka transaction."""

    def stream_changes(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Write all changes after the offset until stopped; with `once`, those that are committed now."""

    def on_committed(self, position: int) -> None:
        """Everything up to this position is committed: the database need not retain it."""

    def close(self) -> None:
        """Close the connections."""
