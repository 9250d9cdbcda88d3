"""The state of a share partition that survives a restart.

All records below the start offset are acknowledged. Of the others, the log stores which are acknowledged as
well, how often a record was delivered and until when it is delayed, and which are to become dead letters. A
record without a stored state is available. Locks are not stored: they end with the broker. Offsets that have
no record for the group are not stored either: they are skipped again after a restart.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

CHUNK_OFFSETS: Final = 64
"""Offsets whose states are stored in one record: an acknowledgment out of order writes one chunk."""
NOT_DELAYED: Final = -1
_UNKNOWN: Final = -1


class StoredState(enum.IntEnum):
    """The state of a record in the log."""

    AVAILABLE = 0
    ACKNOWLEDGED = 1
    ARCHIVING = 2


class ArchiveReason(enum.IntEnum):
    """Why a record becomes a dead letter."""

    NONE = 0
    REJECTED = 1
    DELIVERY_LIMIT = 2
    UNREADABLE = 3

    @property
    def text(self) -> str:
        """The reason as Apache Kafka 4.4 words it (KIP-1191)."""
        return _REASON_TEXTS[self]


_REASON_TEXTS: Final = {
    ArchiveReason.NONE: "",
    ArchiveReason.REJECTED: "Offset rejected by client.",
    ArchiveReason.DELIVERY_LIMIT: "Offset delivery count exceeded the threshold.",
    ArchiveReason.UNREADABLE: "Offset cannot be read.",
}


class PendingDeadLetter(NamedTuple):
    """A record whose dead letter is to be written."""

    reason: ArchiveReason
    deliveries: int
    position: int = -1
    """The end of the dead-letter topic at the time of the decision: the dead letter is there or later."""


class StoredRange(NamedTuple):
    """Consecutive records with the same stored state."""

    first: int
    last: int
    state: StoredState
    deliveries: int = 0
    reason: ArchiveReason = ArchiveReason.NONE
    position: int = -1
    """`PendingDeadLetter.position` of an archiving record; of an available one, when its delay ends, in
    milliseconds since 1970."""


_State = tuple[StoredState, int, ArchiveReason, int]
"""All of a stored range but its offsets."""


class OffsetRanges:
    """A set of offsets as disjoint ranges, first and last included; adjacent ranges are merged."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._firsts, offset) - 1
        return index >= 0 and offset <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._firsts)

    def total(self) -> int:
        """The number of offsets."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add the offsets from `first` to `last`."""
        begin = bisect_right(self._firsts, first)
        if begin and self._lasts[begin - 1] >= first - 1:
            begin -= 1
            first = self._firsts[begin]
        end = begin
        while end < len(self._firsts) and self._firsts[end] <= last + 1:
            last = max(last, self._lasts[end])
            end += 1
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges, or parts of them, between two offsets."""
        index = max(bisect_right(self._firsts, first) - 1, 0)
        for begin, end in zip(self._firsts[index:], self._lasts[index:], strict=True):
            if begin > last:
                return
            if end >= first:
                yield max(begin, first), min(end, last)

    def first_missing(self, offset: int) -> int:
        """The first offset from `offset` that is not in the set."""
        index = bisect_right(self._firsts, offset) - 1
        return max(offset, self._lasts[index] + 1) if index >= 0 else offset

    def remove_through(self, offset: int) -> int:
        """The first offset from `offset` that is not in the set; all below it are removed."""
        removed = 0
        while removed < len(self._firsts) and self._firsts[removed] <= offset:
            offset = max(offset, self._lasts[removed] + 1)
            removed += 1
        del self._firsts[:removed], self._lasts[:removed]
        return offset


class StoredChunks:
    """Which chunks of a share partition have changed, and which are in the log."""

    __slots__ = ("_changed", "_start", "stored")

    def __init__(self, start: int | None) -> None:
        self._changed: set[int] = set()
        self._start = _UNKNOWN if start is None else start
        self.stored: set[int] = set()
        """The chunks that have a record in the log."""

    def mark_changed(self, first: int, last: int) -> None:
        """The states of these offsets have changed."""
        self._changed.update(range(first // CHUNK_OFFSETS, last // CHUNK_OFFSETS + 1))

    def mark_all_changed(self, offsets: Iterable[int]) -> None:
        """The states of these offsets have changed."""
        self._changed.update({offset // CHUNK_OFFSETS for offset in offsets})

    def take(
        self, start: int, ranges_between: Callable[[int, int], Sequence[StoredRange]]
    ) -> tuple[int | None, dict[int, Sequence[StoredRange]]]:
        """The new start offset, if it changed, and the changed chunks; empty ones are to be deleted."""
        first_chunk = start // CHUNK_OFFSETS
        changed: dict[int, Sequence[StoredRange]] = {}
        if first_chunk != self._start // CHUNK_OFFSETS:
            changed = {chunk: () for chunk in self.stored if chunk < first_chunk}
        for chunk in self._changed:
            if chunk >= first_chunk:
                first = chunk * CHUNK_OFFSETS
                ranges = ranges_between(max(first, start), first + CHUNK_OFFSETS - 1)
                if ranges or chunk in self.stored:
                    changed[chunk] = ranges
        self._changed.clear()
        for chunk, kept in changed.items():
            (self.stored.add if kept else self.stored.discard)(chunk)
        moved = start if start != self._start else None
        self._start = start
        return moved, changed

    def undo_take(self, changed: Iterable[int]) -> None:
        """The changes could not be stored: include them in the next ones."""
        self._changed.update(changed)
        self.stored.update(changed)
        self._start = _UNKNOWN


class SharePartitionProgress:
    """The stored state of one share partition, with its changes since the last write."""

    __slots__ = ("acknowledged", "archiving", "chunks", "delayed_until_ms", "deliveries", "start_offset")

    def __init__(self, start_offset: int, *, is_stored: bool = False) -> None:
        self.start_offset = start_offset
        self.acknowledged = OffsetRanges()
        self.deliveries: dict[int, int] = {}
        """How often a record that is not acknowledged has been delivered."""
        self.delayed_until_ms: dict[int, int] = {}
        """When a released record may be delivered again, in milliseconds since 1970."""
        self.archiving: dict[int, PendingDeadLetter] = {}
        self.chunks = StoredChunks(start_offset if is_stored else None)

    def is_settled(self, offset: int) -> bool:
        """Whether a record is not delivered any more: it is acknowledged or becomes a dead letter."""
        return offset < self.start_offset or offset in self.archiving or offset in self.acknowledged

    def is_untouched(self, first: int, last: int) -> bool:
        """Whether no record between the two is settled or delayed."""
        has_others = self.archiving or self.delayed_until_ms
        return not has_others and next(self.acknowledged.between(first, last), None) is None

    def acknowledge(self, first: int, last: int) -> None:
        """The records from `first` to `last` are acknowledged."""
        self.skip(first, last)
        self.chunks.mark_changed(first, last)

    def skip(self, first: int, last: int) -> None:
        """Treat offsets as acknowledged without storing that: a restart skips them again."""
        for known in (self.deliveries, self.delayed_until_ms):
            for offset in known_between(known, first, last):
                del known[offset]
        self.acknowledged.add(first, last)

    def release(self, deliveries: Mapping[int, int], delayed_until_ms: int = 0) -> None:
        """Records were delivered so often without success, and are delayed until the given time."""
        self.deliveries.update(deliveries)
        if delayed_until_ms:
            self.delayed_until_ms.update(dict.fromkeys(deliveries, delayed_until_ms))
        self.chunks.mark_all_changed(deliveries)

    def redeliver(self, offset: int) -> None:
        """A delayed record is delivered again."""
        if self.delayed_until_ms.pop(offset, None) is not None:
            self.chunks.mark_changed(offset, offset)

    def archive(self, offset: int, dead_letter: PendingDeadLetter) -> None:
        """A record becomes a dead letter."""
        self.archiving[offset] = dead_letter
        self.deliveries.pop(offset, None)
        self.delayed_until_ms.pop(offset, None)
        self.chunks.mark_changed(offset, offset)

    def set_dead_letter_position(self, position: int) -> None:
        """Set the end of the dead-letter topic for all records that were archived since the last call."""
        for offset, dead_letter in self.archiving.items():
            if dead_letter.position < 0:
                self.archiving[offset] = dead_letter._replace(position=position)

    def advance(self) -> None:
        """Move the start offset past acknowledged records."""
        self.start_offset = self.acknowledged.remove_through(self.start_offset)

    def advance_to(self, start_offset: int) -> None:
        """Treat all records below `start_offset` as acknowledged."""
        self.skip(self.start_offset, start_offset - 1)
        # All chunks below are deleted; a part of the first remaining one may be obsolete.
        self.chunks.mark_changed(start_offset, start_offset)
        self.advance()

    def take_changes(self) -> tuple[int | None, Mapping[int, Sequence[StoredRange]]]:
        """The new start offset, if it changed, and the changed chunks; empty ones are to be deleted."""
        return self.chunks.take(self.start_offset, self._stored_ranges)

    def restore(self, chunk: int, ranges: Iterable[StoredRange]) -> None:
        """Apply a stored chunk."""
        self.chunks.stored.add(chunk)
        for stored in ranges:
            if stored.last < self.start_offset:
                continue
            first = max(stored.first, self.start_offset)
            if stored.state is StoredState.ACKNOWLEDGED:
                self.acknowledged.add(first, stored.last)
                continue
            for offset in range(first, stored.last + 1):
                if stored.state is StoredState.ARCHIVING:
                    dead_letter = PendingDeadLetter(stored.reason, stored.deliveries, stored.position)
                    self.archiving[offset] = dead_letter
                else:
                    self.deliveries[offset] = stored.deliveries
                    if stored.position > 0:
                        self.delayed_until_ms[offset] = stored.position

    def _stored_ranges(self, first: int, last: int) -> list[StoredRange]:
        ranges = [
            StoredRange(begin, end, StoredState.ACKNOWLEDGED)
            for begin, end in self.acknowledged.between(first, last)
        ]
        if self.archiving or self.deliveries:
            ranges += self._unacknowledged_ranges(first, last)
        return ranges

    def _unacknowledged_ranges(self, first: int, last: int) -> Iterator[StoredRange]:
        """Neighbors with the same state are one range."""
        begin, state = first, self._stored(first)
        for offset in range(first + 1, last + 2):
            following = self._stored(offset) if offset <= last else None
            if following != state:
                if state is not None:
                    yield StoredRange(begin, offset - 1, *state)
                begin, state = offset, following

    def _stored(self, offset: int) -> _State | None:
        dead_letter = self.archiving.get(offset)
        if dead_letter is not None:
            reason, deliveries, position = dead_letter
            return StoredState.ARCHIVING, deliveries, reason, position
        known = self.deliveries.get(offset)
        if known is None:
            return None
        delay_ms = self.delayed_until_ms.get(offset, NOT_DELAYED)
        return StoredState.AVAILABLE, known, ArchiveReason.NONE, delay_ms


def known_between(known: Collection[int], first: int, last: int) -> list[int]:
    """The offsets in `known` between two others; the range may be much larger than `known`."""
    if last - first < len(known):
        return [offset for offset in range(first, last + 1) if offset in known]
    return [offset for offset in known if first <= offset <= last]
