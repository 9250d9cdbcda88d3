"""The log of a partition in memory: offsets, transactions and reading as on disk, and a fixed bound.

The oldest batches go as soon as a new one would not fit into `retention.bytes`, one by one and at the append,
for memory cannot wait for the next look of retention. A restart begins with an empty log.

Offsets go on over a restart all the same: a consumer that kept its position would otherwise take offset 1,000
of the new records for offset 1,000 of the old ones, and step over all before it without a word. The log takes
offsets in blocks from `reserve`, which remembers where the block ends; a clean stop gives the rest back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import read_header
from headrace.storage.appending import AppendingLog
from headrace.storage.errors import RecordTooLarge
from headrace.storage.memory_batches import MemoryBatches
from headrace.storage.timesearch import search_latest_time, search_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.config import TopicConfig
    from headrace.storage.memory_batches import MemoryRange
    from headrace.storage.timesearch import Search

BLOCK_OFFSETS: Final = 2**24
"""Offsets that are reserved at once: one small write to the disk for so many records."""


def keep_nothing(_end: int) -> None:
    """The reservation of a log that nobody opens again."""


class MemoryLog(AppendingLog):
    """The log of one partition of a topic with `headrace.storage=memory`."""

    def __init__(
        self, config: TopicConfig, *, start_offset: int = 0, reserve: Callable[[int], None] = keep_nothing
    ) -> None:
        super().__init__(config)
        self.needs_sync = False
        self.start_offset = self.end_offset = self.high_watermark = start_offset
        self.reserved_end = start_offset
        """Below this offset a restart cannot give an offset a second time."""
        self._reserve = reserve
        self._batches = MemoryBatches()

    @property
    def size(self) -> int:
        """Bytes of the batches that are kept."""
        return self._batches.size

    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        limit = self.config.retention_bytes
        if len(batch) > limit:
            raise RecordTooLarge(
                f"a record batch of {len(batch)} bytes, and this topic keeps {limit} bytes in memory "
                "(retention.bytes): send smaller batches or raise the topic's limit"
            )
        if last_offset >= self.reserved_end:
            end = last_offset + BLOCK_OFFSETS
            self._reserve(end)
            self.reserved_end = end
        while self._batches.size + len(batch) > limit:
            self._drop_first()
        self._batches.add(bytes(batch), header, last_offset)

    def _appended(self) -> None:
        self.high_watermark = self.end_offset

    # ---------------------------------------------------------------- the beginning

    def _drop_first(self) -> None:
        self._begin_at(self._batches.first_offsets_end)

    def _begin_at(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)
        self._batches.drop_before(self.start_offset)
        self.aborted.forget_before(self.start_offset)

    def move_start(self, offset: int) -> None:
        """Move the start of the log to `offset`, and forget the batches that lie before it."""
        self._check_start(offset)
        self._begin_at(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Forget what is too old, or too much since the topic was altered; gives how many bytes went."""
        before = self.size
        while self.size > self.config.retention_bytes or self._is_expired(now_ms):
            self._drop_first()
        return before - self.size

    def _is_expired(self, now_ms: int) -> bool:
        oldest_ms, retention_ms = self._batches.oldest_ms, self.config.retention_ms
        return oldest_ms is not None and retention_ms >= 0 and oldest_ms < now_ms - retention_ms

    # ---------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> MemoryRange | None:
        """Whole batches from the one that holds `offset`, below `end_offset`; None when there is nothing yet.

        With `at_least_one` the first batch comes even if it is larger than `max_bytes`.
        """
        if self._has_read_all(offset, end_offset):
            return None
        return self._batches.select(offset, end_offset, max_bytes, at_least_one=at_least_one)

    def batches(self, offset: int) -> Iterator[bytes]:
        """Each batch from `offset` to the end."""
        return self._batches.from_offset(offset)

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        batch = self._batches.find(offset)
        return None if batch is None else read_header(batch)

    def search_time(self, timestamp: int) -> Search:
        """The first record that is not older than `timestamp`, found in steps."""
        return search_time([self._batches], timestamp, self.start_offset)

    def search_latest_time(self) -> Search:
        """The record with the largest time, found in steps."""
        return search_latest_time([self._batches], self.start_offset)

    def size_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the end."""
        return self._batches.size_from(offset)

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        return self.start_offset if self.size <= size else self._batches.offset_within(size)

    # ---------------------------------------------------------------- life

    def sync(self) -> int:
        """Nothing gets safer than it is; gives the end of the log."""
        return self.end_offset

    def synced(self, end_offset: int) -> None:
        """Readers see everything already."""

    def forget(self) -> None:
        """The topic was deleted: give the memory back."""
        self.is_deleted = True
        self._batches = MemoryBatches()
