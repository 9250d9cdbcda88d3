"""Between a log and a share partition: what comes next is looked at, and what was taken is fetched."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.wishes import read_wishes
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.slices import OpenBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.shares.share_partition import SharePartition
    from headrace.broker.shares.wishes import Wish
    from headrace.protocol.batch import BatchHeader
    from headrace.storage.log import Log

LOOK_BYTES: Final = 64 * 1024
"""How much of the log is looked at in one go; a larger batch is looked at as a whole."""
LOOKS: Final = 16
"""How often in a row: others are served before it goes on."""
CUT_BYTES: Final = 1024
"""A batch of this size is cut when less than half of it is wanted."""


class Collected(NamedTuple):
    """Whole batches, the offsets that they cover, those that the log lacks, and those without room."""

    batches: list[bytes]
    size: int
    covered: list[int]
    missing: list[int]
    left: list[int]


class Batch(NamedTuple):
    """One batch as it was read."""

    base: int
    last: int
    data: bytes


class ShareReader:
    """Reads one log for one share partition."""

    def __init__(self, log: Log, group: str, max_behind: int) -> None:
        self.log = log
        self._group = group
        self._max_behind = max_behind
        self._recent: list[Batch] = []
        self._opened: tuple[int, list[Wish] | None] = (-1, None)
        self._cut: OpenBatch | None = None

    def end(self, state: SharePartition) -> int:
        """The end of what the group may see."""
        committed = state.config.isolation_level == "read_committed"
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def look(self, state: SharePartition, wanted: int, now_ms: int) -> None:
        """Look at records until `wanted` are ready, or there are no more."""
        self._recent.clear()
        state.move_start(self.log.start_offset)
        end = self.end(state)
        for _ in range(LOOKS):
            state.pass_done()
            if state.ready >= wanted or not self.has_more(state):
                return
            found = self.log.read(state.next, LOOK_BYTES, end, at_least_one=True)
            if found is None:
                state.skip(end - 1)
                return
            for batch in split_batches(memoryview(found.read())):
                if state.ready >= wanted:
                    break
                self._look_at(state, bytes(batch), wanted, now_ms)

    def has_more(self, state: SharePartition) -> bool:
        """Whether there are records that nobody has looked at, and that may be looked at now."""
        return state.next < self.end(state) and state.behind < self._max_behind

    def _look_at(self, state: SharePartition, data: bytes, wanted: int, now_ms: int) -> None:
        header = read_header(data)
        if header.is_control or self._is_aborted(state, header):
            state.skip(header.last_offset)
            return
        self._recent.append(Batch(header.base_offset, header.last_offset, data))
        wishes = self._wishes(state, data, header)
        if wishes is None:
            state.see_all(max(header.base_offset, state.next), header.last_offset, wanted)
            return
        for wish in wishes:
            if state.ready >= wanted:
                return
            if wish.offset < state.next:
                continue
            if wish.is_ours:
                state.see(wish.offset, now_ms, key=wish.key, due_ms=wish.due_ms)
            else:
                state.skip(wish.offset)
        state.skip(header.last_offset)

    def _wishes(self, state: SharePartition, data: bytes, header: BatchHeader) -> list[Wish] | None:
        # A large batch is looked at in many small steps: it is opened for the first of them.
        if self._opened[0] != header.base_offset:
            wishes = read_wishes(data, header, self._group, with_keys=state.config.key_order)
            self._opened = (header.base_offset, wishes)
        return self._opened[1]

    def forget(self) -> None:
        """Open batches anew: the group's settings have changed."""
        self._opened = (-1, None)

    def _is_aborted(self, state: SharePartition, header: BatchHeader) -> bool:
        if not header.is_transactional or state.config.isolation_level != "read_committed":
            return False
        found = self.log.aborted.between(header.base_offset, header.last_offset + 1)
        return any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset
            for entry in found
        )

    def collect(self, offsets: Sequence[int], max_bytes: int) -> Collected:
        """The batches that hold these offsets, up to `max_bytes`, but one at least."""
        found = Collected([], 0, [], [], [])
        size, index = 0, 0
        while index < len(offsets):
            batch = self._fetch(offsets[index])
            if batch is None or batch.base > offsets[index]:
                found.missing.append(offsets[index])
                index += 1
                continue
            inside = bisect_right(offsets, batch.last, lo=index)
            data = self._part(batch, offsets[index:inside])
            if found.batches and size + len(data) > max_bytes:
                found.left.extend(offsets[index:])
                break
            found.batches.append(data)
            found.covered.extend(offsets[index:inside])
            size += len(data)
            index = inside
        return found._replace(size=size)

    def _part(self, batch: Batch, offsets: Sequence[int]) -> bytes:
        """The batch, or only the records that are wanted of it when those are few."""
        if len(batch.data) < CUT_BYTES or 2 * len(offsets) > batch.last - batch.base + 1:
            return batch.data
        if self._cut is None or self._cut.base_offset != batch.base:
            self._cut = OpenBatch(batch.data)
        return self._cut.cut(offsets)

    def _fetch(self, offset: int) -> Batch | None:
        for batch in self._recent:
            if batch.base <= offset <= batch.last:
                return batch
        if offset < self.log.start_offset:
            return None
        found = self.log.read(offset, 1, self.log.high_watermark, at_least_one=True)
        if found is None:
            return None
        data = found.read()
        header = read_header(data)
        return Batch(header.base_offset, header.last_offset, data)
