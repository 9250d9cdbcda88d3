"""The state machine of one share group on one partition.

(new) ─▶ available ─▶ acquired ─▶ acknowledged           accepted, or there is no record at the offset
             ▲            ├─────▶ available              released, or its lock expired
             └────────────┘
                          └─────▶ archiving ─▶ acknowledged   rejected, or at the delivery limit: dead letter

    start ≤ (acknowledged, acquired, archiving, available, delayed, blocked by a key) < next ≤ end of the log

All records below the start offset are acknowledged; records from the next offset have not been read. After a
restart the `SharePartitionProgress` is restored, and the records from the start offset are read again.

The state machine receives offsets, members and times, and does no I/O. Consecutive records with the same
acknowledgment are processed as one range: a busy queue does that tens of thousands of times per second.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from headrace.broker.shares.progress import (
    ArchiveReason,
    PendingDeadLetter,
    SharePartitionProgress,
    known_between,
)
from headrace.protocol.share import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from headrace.broker.shares.settings import ShareGroupConfig
    from headrace.protocol.share import AcknowledgedRange

T = TypeVar("T", int, tuple[int, int, bytes | None])

PUSHES_PER_HEAPIFY: Final = 8
"""To rebuild a heap takes about as long as that many times fewer pushes."""


class AcquiredRecords(NamedTuple):
    """The lock of records that a member acquired together with the same delivery count."""

    member: str
    deliveries: int
    deadline_ms: int


class DeliveredRange(NamedTuple):
    """Consecutive records that a member acquired, and their delivery count."""

    first: int
    last: int
    deliveries: int


class KeyOrder:
    """The records of each key in order; only the first of a key may be acquired."""

    __slots__ = ("_by_key", "_key_of")

    def __init__(self) -> None:
        self._by_key: dict[bytes, deque[int]] = {}
        self._key_of: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._key_of)

    @property
    def offsets(self) -> Collection[int]:
        """All records that are tracked."""
        return self._key_of.keys()

    @property
    def blocked(self) -> int:
        """The number of records that are not the first of their key."""
        return len(self._key_of) - len(self._by_key)

    def below(self, offset: int) -> list[int]:
        """The records below an offset."""
        return [known for known in self._key_of if known < offset]

    def add(self, offset: int, key: bytes) -> bool:
        """Add a record after the others of its key; True if it is the first."""
        self._key_of[offset] = key
        records = self._by_key.setdefault(key, deque())
        records.append(offset)
        return len(records) == 1

    def remove(self, offset: int) -> int | None:
        """Remove a record; returns the record that is now the first of the key, if it was not before."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return None
        records = self._by_key[key]
        was_first = records[0] == offset
        records.remove(offset)
        if not records:
            del self._by_key[key]
            return None
        return records[0] if was_first else None


class SharePartitionState:
    """The records of one share partition: available, acquired, acknowledged or archiving."""

    def __init__(self, start_offset: int, config: ShareGroupConfig, *, is_stored: bool = False) -> None:
        self.config = config
        self.next_offset = start_offset
        self.progress = SharePartitionProgress(start_offset, is_stored=is_stored)
        self._acquired: dict[int, AcquiredRecords] = {}
        self._available: list[int] = []
        self._delayed: list[tuple[int, int, bytes | None]] = []
        self._deadlines: list[tuple[int, int]] = []
        self._keys = KeyOrder()

    @property
    def start_offset(self) -> int:
        """The first record that is not acknowledged (KIP-932: SPSO)."""
        return self.progress.start_offset

    @property
    def acquired(self) -> Mapping[int, AcquiredRecords]:
        """The acquired records and their locks."""
        return self._acquired

    # ---------------------------------------------------------------- reading records

    def add_record(self, offset: int, now_ms: int, *, key: bytes | None = None, due_ms: int = 0) -> None:
        """Add the next record; offsets between it and the previous one have no record."""
        self.skip(offset - 1)
        self.next_offset = max(self.next_offset, offset + 1)
        if self.progress.is_settled(offset):
            return
        delayed_until_ms = self.progress.delayed_until_ms.get(offset, 0)
        if due_ms > max(now_ms, delayed_until_ms):
            heapq.heappush(self._delayed, (due_ms, offset, key))
        elif delayed_until_ms > now_ms:
            # It was delivered before the restart of the broker: it stays the first of its key.
            if key is None or not self.config.key_order or self._keys.add(offset, key):
                heapq.heappush(self._delayed, (delayed_until_ms, offset, None))
        else:
            self._make_available(offset, key)

    def add_records(self, first: int, last: int, limit: int, now_ms: int) -> None:
        """Add consecutive records without keys or delays until `limit` are available."""
        stop = min(last + 1, first + limit - len(self._available))
        if stop > first and self.progress.is_untouched(first, stop - 1):
            self.skip(first - 1)
            # Larger than all others: the list remains a heap.
            self._available.extend(range(first, stop))
            self.next_offset = stop
            return
        offset = first
        while offset <= last and len(self._available) < limit:
            self.add_record(offset, now_ms)
            self.next_offset = min(self.progress.acknowledged.first_missing(self.next_offset), last + 1)
            offset = self.next_offset

    def skip_acknowledged(self) -> None:
        """Continue after records that are acknowledged, which need not be read."""
        self.next_offset = self.progress.acknowledged.first_missing(self.next_offset)

    def skip(self, last: int) -> None:
        """Skip offsets up to `last` that are not delivered: transaction markers and aborted records."""
        if last >= self.next_offset:
            self.progress.skip(self.next_offset, last)
            self.next_offset = last + 1
            self._advance()

    def archive_unreadable(self, last: int) -> None:
        """Archive the records that cannot be read, up to `last`, the end of their batch, as one dead letter.

        The last offset represents them: a restart may read the batch from any offset, and its last offset
        shows whether the dead letter is written.
        """
        self.skip(last - 1)
        if self.config.dead_letters and not self.progress.is_settled(last):
            self.progress.archive(last, PendingDeadLetter(ArchiveReason.UNREADABLE, 0))
        if last in self.progress.archiving:
            self.next_offset = last + 1  # not skipped: its dead letter is not written yet
        self.skip(last)

    def _make_available(self, offset: int, key: bytes | None) -> None:
        if key is None or not self.config.key_order or self._keys.add(offset, key):
            heapq.heappush(self._available, offset)

    # ---------------------------------------------------------------- delivery

    @property
    def available(self) -> int:
        """The number of records that can be acquired now."""
        return len(self._available)

    @property
    def blocked(self) -> int:
        """The number of records that wait for another record of their key."""
        return self._keys.blocked

    @property
    def delayed(self) -> int:
        """The number of records whose delay has not ended."""
        return len(self._delayed)

    def lag(self, end_offset: int) -> int:
        """The number of records up to `end_offset` that are not acknowledged."""
        return end_offset - self.start_offset - self.progress.acknowledged.total()

    def free_locks(self) -> int:
        """How many more records may be acquired."""
        return max(self.config.max_record_locks - len(self._acquired), 0)

    def acquire(self, member: str, limit: int, now_ms: int) -> list[int]:
        """Acquire records for the member; returns their offsets in order."""
        deadline_ms = now_ms + self.config.lock_duration_ms
        count = min(limit, self.free_locks(), len(self._available))
        offsets = [heapq.heappop(self._available) for _ in range(count)]
        if not offsets:
            return offsets
        first_delivery = AcquiredRecords(member, 1, deadline_ms)
        self._acquired.update(dict.fromkeys(offsets, first_delivery))
        for offset in offsets if self.progress.deliveries else ():
            deliveries = self.progress.deliveries.get(offset)
            if deliveries is not None:
                self._acquired[offset] = AcquiredRecords(member, deliveries + 1, deadline_ms)
                self.progress.redeliver(offset)
        # All of them have the same deadline: one entry is enough.
        heapq.heappush(self._deadlines, (deadline_ms, offsets[-1]))
        return offsets

    def undo_acquire(self, offsets: Iterable[int]) -> None:
        """Make acquired records that could not be sent available again, without counting a delivery."""
        for offset in offsets:
            del self._acquired[offset]
            heapq.heappush(self._available, offset)

    def discard(self, offsets: Sequence[int]) -> None:
        """Acknowledge records that are no longer in the log."""
        for offset in offsets:
            self._acquired.pop(offset, None)
            self._acknowledge(offset, offset)
        if offsets:
            self._advance()

    def delivered_ranges(self, offsets: Sequence[int]) -> list[DeliveredRange]:
        """Acquired offsets, in order, as ranges with the same delivery count."""
        ranges: list[DeliveredRange] = []
        first = last = deliveries = -1
        for offset in offsets:
            count = self._acquired[offset].deliveries
            if offset != last + 1 or count != deliveries:
                if deliveries > 0:
                    ranges.append(DeliveredRange(first, last, deliveries))
                first, deliveries = offset, count
            last = offset
        if deliveries > 0:
            ranges.append(DeliveredRange(first, last, deliveries))
        return ranges

    # ---------------------------------------------------------------- acknowledgment

    def acknowledge(self, member: str, ranges: Sequence[AcknowledgedRange], now_ms: int) -> ErrorCode:
        """Apply the member's acknowledgments; none of them if it does not hold the lock of a record."""
        error = self._check(member, ranges)
        if error is not ErrorCode.none:
            return error
        released: defaultdict[int, list[int]] = defaultdict(list)
        for first, last, kind, delay_ms in _uniform_ranges(ranges, self.start_offset):
            if kind == AcknowledgeType.ACCEPT:
                for offset in range(first, last + 1):
                    del self._acquired[offset]
                self._acknowledge(first, last)
                continue
            # A gap may have any length; the number of acquired records is bounded.
            offsets = known_between(self._acquired, first, last)
            if kind == AcknowledgeType.RELEASE:
                released[now_ms + delay_ms if delay_ms > 0 else 0] += offsets
                continue
            for offset in offsets:
                self._apply(offset, kind, now_ms)
        for delayed_until_ms, offsets in released.items():
            self._release(offsets, delayed_until_ms)
        self._advance()
        return ErrorCode.none

    def _check(self, member: str, ranges: Sequence[AcknowledgedRange]) -> ErrorCode:
        previous = -1
        for first, last, types, _ in ranges:
            if not previous < first <= last or len(types) not in (1, last - first + 1):
                return ErrorCode.invalid_request
            if not _ACKNOWLEDGE_TYPES.issuperset(types):
                return ErrorCode.invalid_request
            previous = last
        if previous >= self.next_offset:
            return ErrorCode.invalid_record_state
        acquired = self._acquired
        for first, last, kind, _ in _uniform_ranges(ranges, self.start_offset):
            for offset in range(first, last + 1) if kind else ():
                lock = acquired.get(offset)
                # Records that the log has lost, and gaps that were never delivered, need no lock.
                if lock is None or lock.member != member:
                    return ErrorCode.invalid_record_state
        return ErrorCode.none

    def _apply(self, offset: int, kind: int, now_ms: int) -> None:
        if kind == AcknowledgeType.REJECT:
            self._archive(offset, ArchiveReason.REJECTED)
        elif kind == AcknowledgeType.RENEW:
            deadline_ms = now_ms + self.config.lock_duration_ms
            self._acquired[offset] = self._acquired[offset]._replace(deadline_ms=deadline_ms)
            heapq.heappush(self._deadlines, (deadline_ms, offset))
        else:
            del self._acquired[offset]
            self._acknowledge(offset, offset)

    def _release(self, offsets: Iterable[int], delayed_until_ms: int = 0) -> None:
        limit = self.config.delivery_count_limit
        released: dict[int, int] = {}
        for offset in offsets:
            deliveries = self._acquired[offset].deliveries
            if deliveries >= limit:
                self._archive(offset, ArchiveReason.DELIVERY_LIMIT)
            else:
                del self._acquired[offset]
                released[offset] = deliveries
        self.progress.release(released, delayed_until_ms)
        if delayed_until_ms:
            # Without their keys: they remain the first of their keys.
            _push_all(self._delayed, [(delayed_until_ms, offset, None) for offset in released])
        else:
            _push_all(self._available, list(released))

    def _archive(self, offset: int, reason: ArchiveReason) -> None:
        lock = self._acquired.pop(offset)
        if not self.config.dead_letters:
            self._acknowledge(offset, offset)
            return
        self.progress.archive(offset, PendingDeadLetter(reason, lock.deliveries))
        self._unblock(offset)

    def dead_letter_written(self, offset: int) -> None:
        """The dead letter of an archiving record is in the log."""
        if self.progress.archiving.pop(offset, None) is not None:
            self._acknowledge(offset, offset)
            self._advance()

    # ---------------------------------------------------------------- timeouts and members that leave

    def expire(self, now_ms: int) -> None:
        """Release records whose lock has expired, and make records available whose delay has ended."""
        has_expired = False
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            heapq.heappop(self._deadlines)
            has_expired = True
        if has_expired:
            self._release_all(o for o, lock in self._acquired.items() if lock.deadline_ms <= now_ms)
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, offset, key = heapq.heappop(self._delayed)
            if offset >= self.start_offset and not self.progress.is_settled(offset):
                self._make_available(offset, key)

    def release_member(self, member: str) -> None:
        """Release all records that a member has acquired."""
        self._release_all(offset for offset, lock in self._acquired.items() if lock.member == member)

    def _release_all(self, offsets: Iterable[int]) -> None:
        self._release(list(offsets))
        self._advance()

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, or a little before."""
        times = [heap[0][0] for heap in (self._deadlines, self._delayed) if heap]
        return min(times, default=None)

    # ---------------------------------------------------------------- start offset

    def advance_to(self, start_offset: int) -> None:
        """Drop the records below `start_offset`, which are no longer in the log."""
        if start_offset <= self.start_offset:
            return
        for offset in [offset for offset in self._acquired if offset < start_offset]:
            del self._acquired[offset]
        for offset in self._keys.below(start_offset):
            self._unblock(offset)
        self._available = [offset for offset in self._available if offset >= start_offset]
        heapq.heapify(self._available)
        self.progress.advance_to(start_offset)
        self._advance()

    def _acknowledge(self, first: int, last: int) -> None:
        self.progress.acknowledge(first, last)
        if self._keys:
            for offset in known_between(self._keys.offsets, first, last):
                self._unblock(offset)

    def _unblock(self, offset: int) -> None:
        following = self._keys.remove(offset)
        if following is not None:
            heapq.heappush(self._available, following)

    def _advance(self) -> None:
        self.progress.advance()
        self.next_offset = max(self.next_offset, self.start_offset)


def _push_all(heap: list[T], items: Sequence[T]) -> None:
    """Add items to a heap: one by one, or all at once where that is faster."""
    if len(items) * PUSHES_PER_HEAPIFY < len(heap):
        for item in items:
            heapq.heappush(heap, item)
    elif items:
        heap += items
        heapq.heapify(heap)


def _uniform_ranges(
    ranges: Iterable[AcknowledgedRange], start_offset: int
) -> Iterator[tuple[int, int, int, int]]:
    """First, last, type and delay of ranges from `start_offset` with one acknowledge type each."""
    for first, last, types, delay_ms in ranges:
        if last < start_offset:
            continue
        if types.count(types[0]) == len(types):
            yield max(first, start_offset), last, types[0], delay_ms
        else:
            for offset in range(max(first, start_offset), last + 1):
                yield offset, offset, types[offset - first], delay_ms


_ACKNOWLEDGE_TYPES: Final = frozenset(AcknowledgeType)
