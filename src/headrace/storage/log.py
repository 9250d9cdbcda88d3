"""What the broker needs of a partition's log, wherever its batches are kept.

`PartitionLog` keeps them in files and `MemoryLog` in memory; one suite of tests holds both to this contract.
Only the event loop of the broker calls these methods, except for `sync`.

Offsets of a partition, in this order: `start_offset` (retention and DeleteRecords move it), the last stable
offset (what readers of committed records may see), `high_watermark` (what anybody may see), `end_offset`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace.storage.memory_log import MemoryRange
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.aborted import AbortedTransactions
    from headrace.storage.base_log import Appended
    from headrace.storage.config import TopicConfig
    from headrace.storage.producers import ProducerStates
    from headrace.storage.time_search import Search

Records = FileRange | MemoryRange
"""Whole batches, ready to be sent: both have a `size`, and give their bytes with `read()`."""


class Log(Protocol):
    """The log of one partition."""

    config: TopicConfig
    start_offset: int
    end_offset: int
    high_watermark: int
    written_bytes: int
    """Bytes that were appended since the log was opened."""
    producers: ProducerStates
    aborted: AbortedTransactions
    is_deleted: bool
    needs_sync: bool
    """Whether what was appended is safer after a `sync`."""

    @property
    def size(self) -> int:
        """Bytes of the batches that are kept."""
        ...

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records may see."""
        ...

    def append(
        self,
        batch: memoryview,
        now_ms: int,
        admit: Callable[[BatchHeader], None] | None = None,
        *,
        has_keys: bool = False,
        checksum: int | None = None,
    ) -> Appended:
        """Store one batch of a client and say at which offset, or refuse it with the reason.

        `has_keys` says that the keys which a compacted topic wants have been looked for already, `checksum`
        is the one of the batch's bytes where that has been computed already.
        """
        ...

    def append_internal(
        self, records: bytes, count: int, now_ms: int, producer: tuple[int, int] | None = None
    ) -> int:
        """Store records of the broker itself; with a producer id and epoch, inside its transaction."""
        ...

    def append_marker(self, producer_id: int, epoch: int, *, committed: bool, now_ms: int) -> int:
        """End the producer's transaction in this partition with a control batch."""
        ...

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> Records | None:
        """Whole batches from the one that holds `offset`, below `end_offset`; None when there is nothing yet.

        With `at_least_one` the first batch comes even if it is larger than `max_bytes`.
        """
        ...

    def batches(self, offset: int) -> Iterator[bytes]:
        """Each batch from `offset` to the end: for the broker's own reading."""
        ...

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        ...

    def search_time(self, timestamp: int) -> Search:
        """The first record that is not older than `timestamp`, found in steps: the search may take long."""
        ...

    def search_latest_time(self) -> Search:
        """The record with the largest time, found in steps."""
        ...

    def size_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the end."""
        ...

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        ...

    def move_start(self, offset: int) -> None:
        """Move the start of the log to `offset`, and let go of what lies before it."""
        ...

    def apply_retention(self, now_ms: int) -> int:
        """Let go of what the topic no longer keeps, by age and by size; gives how many bytes went."""
        ...

    def sync(self) -> int:
        """Make all that was appended before the call as safe as it gets; gives the offset that it reaches.

        Called from a thread of its own while the loop goes on appending.
        """
        ...

    def synced(self, end_offset: int) -> None:
        """Let readers see what a sync has reached."""
        ...
