"""Between a log and a share partition: the next records are found, and acquired ones are fetched.

Each turn of the event loop finds a bounded number of records, however large a batch is and whatever it says
of itself. A batch, or the rest of one, in which no record can be found becomes one dead letter, and the group
goes on behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.wishes import MARK, read_wish
from headrace.protocol.batch import read_header, split_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.share_partition import SharePartition
    from headrace.protocol.batch import BatchHeader
    from headrace.protocol.slices import OpenBatch
    from headrace.storage.log import Log

LOOK_BYTES: Final = 64 * 1024
"""How much of the log is read in one go; a larger batch is read as a whole."""
LOOKS: Final = 16
"""How often in a row: others are served before it goes on."""
FIND_RECORDS: Final = 2_000
"""Records that are found, or decoded, before others are served: some milliseconds."""
CUT_BYTES: Final = 1024
"""A batch of this size is cut when less than half of it is wanted."""


class Collected(NamedTuple):
    """Whole batches, the offsets that they cover, those that the log lacks, and those for another time."""

    batches: list[bytes]
    size: int
    covered: list[int]
    missing: list[int]
    left: list[int]


class ShareReader:
    """Reads one log for one share partition."""

    def __init__(
        self, log: Log, group: str, max_behind: int, cache: BatchCache, on_open: Callable[[], None]
    ) -> None:
        self.log = log
        self.is_opening = False
        """Whether a batch is being decompressed: until then there is nothing to look at."""
        self._group = group
        self._max_behind = max_behind
        self._cache = cache
        self._on_open = on_open
        self._base = -1
        self._recent: list[OpenBatch] = []
        """The batches of the acquisition under way, by their offsets."""
        self._bases: list[int] = []
        self._budget = 0

    def end(self, state: SharePartition) -> int:
        """The end of what the group may see."""
        committed = state.config.isolation_level == "read_committed"
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def begin(self) -> None:
        """Begin with an acquisition: some records may be found again."""
        self._budget = FIND_RECORDS

    def finish(self) -> None:
        """Keep no batch: those that may be wanted again are in the cache."""
        self._recent.clear()
        self._bases.clear()

    def has_more(self, state: SharePartition) -> bool:
        """Whether there are records that nobody has looked at, and that may be looked at now."""
        return not self.is_opening and state.next < self.end(state) and state.behind < self._max_behind

    # ---------------------------------------------------------------- new records

    def look(self, state: SharePartition, wanted: int, now_ms: int) -> None:
        """Look at records until `wanted` are ready, there are no more, or others are to be served."""
        state.move_start(self.log.start_offset)
        for _ in range(LOOKS):
            state.pass_done()
            if state.ready >= wanted or not self.has_more(state):
                return
            if not self._look_once(state, wanted, now_ms):
                return

    def _look_once(self, state: SharePartition, wanted: int, now_ms: int) -> bool:
        """Look at one piece of the log; False when that is all for now."""
        known = self._known(state.next)
        if known is not None:
            return self._look_at(state, known, wanted, now_ms)
        end = self.end(state)
        found = self.log.read(state.next, LOOK_BYTES, end, at_least_one=True)
        if found is None:
            state.skip(end - 1)
            return False
        for view in split_batches(memoryview(found.read())):
            header = read_header(view)
            if state.ready >= wanted:
                break
            if header.is_control or self._is_aborted(state, header):
                state.skip(header.last_offset)
                continue
            opened = self._open(bytes(view))
            if opened is None or not self._look_at(state, opened, wanted, now_ms):
                return False
        return True

    def _look_at(self, state: SharePartition, opened: OpenBatch, wanted: int, now_ms: int) -> bool:
        self._base = opened.header.base_offset
        last = opened.header.last_offset
        while state.next <= last and state.ready < wanted:
            first = max(opened.header.base_offset, state.next)
            if first >= opened.next_offset and not opened.is_whole:
                if not self._find(opened, first - opened.header.base_offset + wanted - state.ready):
                    return False
                if opened.fault is not None and first >= opened.next_offset:
                    state.give_up_unreadable(last)
                continue
            if not self._pass(state, opened, first, wanted, now_ms):
                return False
        return True

    def _find(self, opened: OpenBatch, target: int) -> bool:
        """Find records up to the number `target`; False when others are to be served first."""
        if self._budget <= 0:
            self._cache.hold(self, opened)
            return False
        self._budget -= max(opened.find(min(max(target - opened.found, 1), self._budget)), 1)
        return True

    def _pass(self, state: SharePartition, opened: OpenBatch, first: int, wanted: int, now_ms: int) -> bool:
        """Look at the records from `first` on that have been found; False when that is all for now."""
        index = opened.first_from(first)
        if opened.has_gaps or state.config.key_order or opened.contains(MARK, index, opened.found):
            return self._pass_one_by_one(state, opened, index, wanted, now_ms)
        state.see_all(first, opened.next_offset - 1, wanted, now_ms)
        return True

    def _pass_one_by_one(
        self, state: SharePartition, opened: OpenBatch, index: int, wanted: int, now_ms: int
    ) -> bool:
        for each in range(index, opened.found):
            if state.ready >= wanted:
                return True
            if self._budget <= 0 or state.behind >= self._max_behind:
                self._cache.hold(self, opened)
                return False
            self._budget -= 4  # a record that is decoded costs as much as four that are stepped over
            wish = read_wish(opened.record(each), self._group)
            if wish.is_ours:
                state.see(wish.offset, now_ms, key=wish.key, due_ms=wish.due_ms)
            else:
                state.skip(wish.offset)
        state.skip(opened.next_offset - 1)
        return True

    def _is_aborted(self, state: SharePartition, header: BatchHeader) -> bool:
        if not header.is_transactional or state.config.isolation_level != "read_committed":
            return False
        found = self.log.aborted.between(header.base_offset, header.last_offset + 1)
        return any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset
            for entry in found
        )

    # ---------------------------------------------------------------- records that were acquired

    def collect(self, offsets: Sequence[int], max_bytes: int) -> Collected:
        """The batches that hold these offsets, up to `max_bytes`, but one at least."""
        found = Collected([], 0, [], [], [])
        size, index = 0, 0
        while index < len(offsets):
            opened = self._known(offsets[index])
            if opened is None and (data := self._read(offsets[index])) is not None:
                opened = self._open(data)
                if opened is None:
                    found.left.extend(offsets[index:])
                    break
            if opened is None or opened.header.base_offset > offsets[index]:
                found.missing.append(offsets[index])
                index += 1
                continue
            inside = bisect_right(offsets, opened.header.last_offset, lo=index)
            if not self._reach(opened, offsets[inside - 1]):
                found.left.extend(offsets[index:])
                break
            part = _part(opened, offsets[index:inside])
            if found.batches and size + len(part) > max_bytes:
                found.left.extend(offsets[index:])
                break
            found.batches.append(part)
            found.covered.extend(offsets[index:inside])
            size += len(part)
            index = inside
        return found._replace(size=size)

    def _reach(self, opened: OpenBatch, offset: int) -> bool:
        """Find the records up to an offset; False when others are to be served first."""
        while opened.next_offset <= offset and opened.fault is None:
            if not self._find(opened, offset - opened.header.base_offset + 1):
                return False
        return True

    # ---------------------------------------------------------------- batches

    def _read(self, offset: int) -> bytes | None:
        """The batch that holds an offset, or the first one behind it, as it is stored."""
        if offset < self.log.start_offset:
            return None
        found = self.log.read(offset, 1, self.log.high_watermark, at_least_one=True)
        return None if found is None else found.read()

    def _known(self, offset: int) -> OpenBatch | None:
        """The batch that holds an offset, if it is open."""
        index = bisect_right(self._bases, offset) - 1
        if index >= 0 and _holds(self._recent[index], offset):
            return self._recent[index]
        for opened in (self._cache.held(self), self._cache.get(self.log, self._base)):
            if opened is not None and _holds(opened, offset):
                return self._note(opened)
        return None

    def _open(self, data: bytes) -> OpenBatch | None:
        """The batch in `data`; None when it is being decompressed, and then it is looked at again."""
        opened = self._cache.open(self.log, data, self._opened)
        if opened is None:
            self.is_opening = True
            return None
        return self._note(opened)

    def _opened(self, opened: OpenBatch) -> None:
        self._cache.hold(self, opened)
        self.is_opening = False
        self._on_open()

    def _note(self, opened: OpenBatch) -> OpenBatch:
        index = bisect_right(self._bases, opened.header.base_offset)
        self._bases.insert(index, opened.header.base_offset)
        self._recent.insert(index, opened)
        return opened


def _holds(opened: OpenBatch, offset: int) -> bool:
    return opened.header.base_offset <= offset <= opened.header.last_offset


def _part(opened: OpenBatch, offsets: Sequence[int]) -> bytes:
    """The batch, or only the records that are wanted of it when those are few, or others cannot be read."""
    count = opened.header.count
    if opened.is_whole and (len(opened.data) < CUT_BYTES or 2 * len(offsets) > count):
        return opened.data
    return opened.cut(offsets)
