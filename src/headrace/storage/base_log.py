"""How a batch gets into a log, wherever that keeps it: check, place, store, and remember its producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    place_batch,
    read_header,
    stamp_append_time,
)
from headrace.storage.aborted import AbortedTransactions
from headrace.storage.errors import OffsetOutOfRange
from headrace.storage.producers import ProducerStates
from headrace.storage.validation import validate_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.storage.config import TopicConfig

NO_TIMESTAMP: Final = -1


class Appended(NamedTuple):
    """Where a batch went; a repeated batch went where its first copy is."""

    base_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class BaseLog(ABC):
    """The offsets, producers and transactions of a log; what keeps its batches is left to each kind."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.written_bytes = 0
        """Bytes that were appended since the log was opened."""
        self.producers = ProducerStates()
        self.aborted = AbortedTransactions()
        self.is_deleted = False

    @abstractmethod
    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        """Keep a batch that ends with `last_offset`, or raise and leave everything as it was."""

    @abstractmethod
    def _appended(self) -> None:
        """The end has moved: let readers see as much as they may."""

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

        `batch` must be writable: its offset and, if the topic wants it, the broker's time go into its header.
        `admit` has the last word on a batch that is good and new: what it raises refuses the batch.
        `has_keys` says that the keys which a compacted topic wants have been looked for already, `checksum`
        is the one of the batch's bytes where that has been computed already.
        """
        header = validate_batch(batch, self.config, now_ms, has_keys=has_keys, checksum=checksum)
        if header.producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.base_offset, duplicate.append_time_ms, is_duplicate=True)
        if admit is not None:
            admit(header)
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type == "LogAppendTime":
            stamp_append_time(batch, header, now_ms)
            header = header._replace(max_timestamp=now_ms)
            append_time_ms = now_ms
        base_offset = self._store(batch, header)
        if header.producer_id >= 0:
            self.producers.applied(header, base_offset, now_ms)
        return Appended(base_offset, append_time_ms)

    def append_internal(
        self, records: bytes, count: int, now_ms: int, producer: tuple[int, int] | None = None
    ) -> int:
        """Store records of the broker itself; with a producer id and epoch, inside its transaction."""
        producer_id, epoch = producer or (-1, -1)
        batch = build_batch(
            records,
            count,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL if producer else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        header = read_header(batch)
        base_offset = self._store(batch, header)
        if producer:
            self.producers.applied(header, base_offset, now_ms)
        return base_offset

    def append_marker(self, producer_id: int, epoch: int, *, committed: bool, now_ms: int) -> int:
        """End the producer's transaction in this partition with a control batch."""
        self.producers.check_marker(producer_id, epoch)
        batch = build_batch(
            _marker_record(committed=committed),
            1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        offset = self._store(batch, read_header(batch))
        aborted = self.producers.marker(producer_id, epoch, offset, committed=committed, now_ms=now_ms)
        if aborted is not None:
            self.aborted.add(aborted)
        return offset

    def _store(self, batch: memoryview | bytearray, header: BatchHeader) -> int:
        base_offset = self.end_offset
        place_batch(batch, base_offset, 0)
        last_offset = base_offset + header.last_offset_delta
        self._write(batch, header, last_offset)
        self.end_offset = last_offset + 1
        self.written_bytes += len(batch)
        self._appended()
        return base_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records may see."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(self.start_offset, min(unstable, self.high_watermark))

    def _check_start(self, offset: int) -> None:
        """Pass when the start of the log may move to `offset`."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is not between {self.start_offset} and {self.high_watermark}"
            )

    def _has_read_all(self, offset: int, end_offset: int) -> bool:
        """Whether nothing lies between `offset` and `end_offset`; an offset outside the log is an error."""
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start {self.start_offset}")
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.high_watermark}")
        return offset >= end_offset


def _marker_record(*, committed: bool) -> bytes:
    """The one record of a control batch: key (version 0, type), value (version 0, coordinator epoch 0)."""
    key = b"\0\0\0\1" if committed else b"\0\0\0\0"
    body = b"\0\0\0" + b"\x08" + key + b"\x0c" + b"\0\0\0\0\0\0" + b"\0"
    return bytes([len(body) * 2]) + body
