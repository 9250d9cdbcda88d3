"""Reads the log for a share partition: finds the next records, and reads acquired ones.

Each turn of the event loop reads a bounded number of bytes, and parses a bounded number of records,
independent of the size of a batch and of its header. A large batch is read in a thread. A batch, or the rest
of one, that cannot be parsed becomes one dead letter.

Headers of a record control its delivery:

| header | meaning |
|---|---|
| `headrace-deliver-at` | not before this time, in milliseconds since 1970 |
| `headrace-delay-ms` | not before this many milliseconds after the record's timestamp |
| `headrace-group` | only for this share group: used when a dead letter is redriven |

A value that is not a number is ignored.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.batch_cache import LARGE_BATCH_BYTES
from headrace.protocol.batch import read_header, split_batches
from headrace.storage.errors import ArchiveError
from headrace.storage.remote_cache import RemoteReadPending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.partition_state import SharePartitionState
    from headrace.protocol.batch import BatchHeader
    from headrace.protocol.compression import Bytes
    from headrace.protocol.decompressed_batch import DecompressedBatch
    from headrace.protocol.records import RecordView
    from headrace.storage.log import Log, Records

DELIVER_AT: Final = "headrace-deliver-at"
DELAY_MS: Final = "headrace-delay-ms"
ONLY_GROUP: Final = "headrace-group"
MAX_DIGITS: Final = 19
HEADER_PREFIX: Final = b"headrace-"
"""The common prefix of the header names: records without these bytes need not be decoded."""

READ_BYTES: Final = 64 * 1024
"""How much of the log is read at once; a larger batch is read as a whole."""
MAX_READS: Final = 16
"""How many reads for new records are done before other requests are served."""
MAX_ACQUIRED_READS: Final = 250
MAX_ACQUIRED_BYTES: Final = 8 << 20
"""How often and how much is read for acquired records before other requests are served."""
MAX_COPIED_BYTES: Final = 1 << 20
"""How much is copied out of batches before other requests are served; a larger record is not copied."""
MAX_SEARCHED_BYTES: Final = 4 << 20
"""Records that are searched for delivery headers as a whole; larger ones are decoded one by one."""
MAX_KEY_BYTES: Final = 1024
"""Longer keys that begin with the same bytes count as the same key."""
MAX_PARSED_RECORDS: Final = 2_000
"""Records that are parsed or decoded before other requests are served: some milliseconds."""
MIN_SLICED_BYTES: Final = 1024
"""A batch of this size is sliced if less than half of its records are acquired."""


class DeliveryHeaders(NamedTuple):
    """Key and delivery headers of a record."""

    offset: int
    key: bytes | None
    due_ms: int
    is_for_group: bool


def read_delivery_headers(record: RecordView, group: str) -> DeliveryHeaders:
    """The delivery headers of a record for a group."""
    due_ms, is_for_group = 0, True
    for name, value in record.headers:
        if name == DELIVER_AT:
            due_ms = max(due_ms, _number(value))
        elif name == DELAY_MS:
            due_ms = max(due_ms, record.timestamp + _number(value))
        elif name == ONLY_GROUP:
            is_for_group = value is not None and value == memoryview(group.encode())
    key = None if record.key is None else bytes(record.key[:MAX_KEY_BYTES])
    return DeliveryHeaders(record.offset, key, due_ms, is_for_group)


def _number(value: memoryview | None) -> int:
    if value is None or len(value) >= MAX_DIGITS:
        return 0
    digits = bytes(value)
    return int(digits) if digits.isdigit() else 0


class AcquiredBatches(NamedTuple):
    """Batches with acquired records; offsets that they contain, that the log lacks, and that are left."""

    batches: list[Bytes]
    """Complete batches in order; a large one may have two parts."""
    size: int
    included: list[int]
    missing: list[int]
    left: list[int]


class SharePartitionReader:
    """Reads one log for one share partition."""

    def __init__(
        self, log: Log, group: str, max_blocked: int, cache: BatchCache, on_open: Callable[[], None]
    ) -> None:
        self.log = log
        self.is_opening = False
        """Whether a batch is being decompressed or downloaded: no records can be read until then."""
        self._group = group
        self._max_blocked = max_blocked
        self._cache = cache
        self._on_open = on_open
        self._base_offset = -1
        self._recent: list[DecompressedBatch] = []
        """The batches of the current acquisition, by offset."""
        self._recent_offsets: list[int] = []
        self._budget = 0
        self._reads = 0
        self._read_bytes = 0
        self._copyable_bytes = 0

    def end_offset(self, state: SharePartitionState) -> int:
        """The end of the records that the group may read."""
        committed = state.config.isolation_level == "read_committed"
        return self.log.last_stable_offset if committed else self.log.high_watermark

    def begin(self) -> None:
        """Begin an acquisition with a new budget of records and bytes."""
        self._budget = MAX_PARSED_RECORDS
        self._reads = self._read_bytes = 0
        self._copyable_bytes = MAX_COPIED_BYTES

    def finish(self) -> None:
        """End an acquisition; batches that may be needed again are in the cache."""
        self._recent.clear()
        self._recent_offsets.clear()

    def has_more(self, state: SharePartitionState) -> bool:
        """Whether there are records that have not been read and may be read now."""
        is_behind = state.next_offset < self.end_offset(state)
        return not self.is_opening and is_behind and state.blocked < self._max_blocked

    # ---------------------------------------------------------------- new records

    def read_new(self, state: SharePartitionState, wanted: int, now_ms: int) -> None:
        """Read records until `wanted` are available, there are no more, or the budget is used."""
        state.advance_to(self.log.start_offset)
        for _ in range(MAX_READS):
            state.skip_acknowledged()
            if state.available >= wanted or not self.has_more(state):
                return
            if not self._read_once(state, wanted, now_ms):
                return

    def _read_once(self, state: SharePartitionState, wanted: int, now_ms: int) -> bool:
        """Read one part of the log; False if reading stops for now."""
        known = self._find_open(state.next_offset)
        if known is not None:
            return self._add_batch(state, known, wanted, now_ms)
        end_offset = self.end_offset(state)
        try:
            found = self.log.read(state.next_offset, READ_BYTES, end_offset, at_least_one=True)
        except ArchiveError as fault:
            self._download(fault)
            return False
        if found is None:
            state.skip(end_offset - 1)
            return False
        if found.size >= LARGE_BATCH_BYTES:
            return self._add_large_batch(state, found, wanted, now_ms)
        for view in split_batches(memoryview(found.read())):
            header = read_header(view)
            if state.available >= wanted:
                break
            if header.is_control or self._is_aborted(state, header):
                state.skip(header.last_offset)
                continue
            opened = self._decompress(bytes(view))
            if opened is None or not self._add_batch(state, opened, wanted, now_ms):
                return False
        return True

    def _add_large_batch(self, state: SharePartitionState, found: Records, wanted: int, now_ms: int) -> bool:
        header = found.header()
        if header.is_control or self._is_aborted(state, header):
            state.skip(header.last_offset)
            return True
        opened = self._open(found)
        return opened is not None and self._add_batch(state, opened, wanted, now_ms)

    def _add_batch(
        self, state: SharePartitionState, opened: DecompressedBatch, wanted: int, now_ms: int
    ) -> bool:
        self._base_offset = opened.header.base_offset
        last = opened.header.last_offset
        while state.next_offset <= last and state.available < wanted:
            first = max(opened.header.base_offset, state.next_offset)
            if first >= opened.next_offset and not opened.is_whole:
                if not self._parse(opened, first - opened.header.base_offset + wanted - state.available):
                    return False
                if opened.fault is not None and first >= opened.next_offset:
                    state.archive_unreadable(last)
                continue
            if not self._add_records(state, opened, first, wanted, now_ms):
                return False
        return True

    def _parse(self, opened: DecompressedBatch, count: int) -> bool:
        """Parse up to `count` records of a batch; False if the budget is used."""
        if self._budget <= 0:
            self._cache.hold(self, opened)
            return False
        self._budget -= max(opened.find(min(max(count - opened.found, 1), self._budget)), 1)
        return True

    def _add_records(
        self, state: SharePartitionState, opened: DecompressedBatch, first: int, wanted: int, now_ms: int
    ) -> bool:
        """Add the parsed records from `first` to the state; False if reading stops for now."""
        index = opened.first_from(first)
        is_large = opened.size_of(index, opened.found) > MAX_SEARCHED_BYTES
        needs_decoding = opened.has_gaps or state.config.key_order or is_large
        if needs_decoding or opened.contains(HEADER_PREFIX, index, opened.found):
            return self._add_one_by_one(state, opened, index, wanted, now_ms)
        state.add_records(first, opened.next_offset - 1, wanted, now_ms)
        return True

    def _add_one_by_one(
        self, state: SharePartitionState, opened: DecompressedBatch, index: int, wanted: int, now_ms: int
    ) -> bool:
        for each in range(index, opened.found):
            if state.available >= wanted:
                return True
            if self._budget <= 0 or state.blocked >= self._max_blocked:
                self._cache.hold(self, opened)
                return False
            record = opened.view(each)
            self._budget -= 4 + len(record.headers)  # decoding a record costs as much as parsing four
            headers = read_delivery_headers(record, self._group)
            if headers.is_for_group:
                state.add_record(headers.offset, now_ms, key=headers.key, due_ms=headers.due_ms)
            else:
                state.skip(headers.offset)
        state.skip(opened.next_offset - 1)
        return True

    def _is_aborted(self, state: SharePartitionState, header: BatchHeader) -> bool:
        if not header.is_transactional or state.config.isolation_level != "read_committed":
            return False
        found = self.log.aborted.between(header.base_offset, header.last_offset + 1)
        return any(
            entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset
            for entry in found
        )

    # ---------------------------------------------------------------- acquired records

    def read_acquired(self, offsets: Sequence[int], max_bytes: int) -> AcquiredBatches:
        """The batches of these offsets, up to `max_bytes`, but at least one."""
        found = AcquiredBatches([], 0, [], [], [])
        size, index = 0, 0
        while index < len(offsets):
            opened = self._find_open(offsets[index])
            if opened is None:
                try:
                    stored = self._read_batch(offsets[index])
                except ArchiveError as fault:
                    self._download(fault)
                    break
                if stored is not None:
                    opened = self._open(stored)
                    if opened is None:
                        break
            if opened is None or opened.header.base_offset > offsets[index]:
                found.missing.append(offsets[index])
                index += 1
                continue
            inside = bisect_right(offsets, opened.header.last_offset, lo=index)
            if not self._parse_through(opened, offsets[inside - 1]):
                break
            parts, count = self._slice(opened, offsets[index:inside])
            part_size = sum(map(len, parts))
            if not count or (found.batches and size + part_size > max_bytes):
                break
            found.batches.extend(parts)
            found.included.extend(offsets[index : index + count])
            size += part_size
            index += count
            if self._reads > MAX_ACQUIRED_READS or self._read_bytes > MAX_ACQUIRED_BYTES:
                break
        found.left.extend(offsets[index:])
        return found._replace(size=size)

    def _slice(self, opened: DecompressedBatch, offsets: Sequence[int]) -> tuple[list[Bytes], int]:
        """The batch, or only its acquired records if these are few, or if others cannot be read.

        Returns the parts of the batch, and how many of the records it contains; none if too much was copied
        before.
        """
        if opened.is_whole and (
            len(opened.data) < MIN_SLICED_BYTES or 2 * len(offsets) > opened.header.count
        ):
            return [opened.data], len(offsets)
        count = self._copyable(opened, offsets)
        if count:
            part = opened.select(offsets[:count])
            self._copyable_bytes -= len(part)
            return [part], count
        if self._copyable_bytes < MAX_COPIED_BYTES:
            return [], 0
        self._copyable_bytes = 0  # computing its checksum takes as long
        return opened.select_large(offsets[0]), 1

    def _copyable(self, opened: DecompressedBatch, offsets: Sequence[int]) -> int:
        """How many of the records may be copied now; records that compaction removed need no room."""
        size = 0
        for count, offset in enumerate(offsets):
            index = opened.index_of(offset)
            size += 0 if index is None else opened.size_of(index, index + 1)
            if size > self._copyable_bytes:
                return count
        return len(offsets)

    def _parse_through(self, opened: DecompressedBatch, offset: int) -> bool:
        """Parse the records up to an offset; False if the budget is used."""
        while opened.next_offset <= offset and opened.fault is None:
            if not self._parse(opened, offset - opened.header.base_offset + 1):
                return False
        return True

    # ---------------------------------------------------------------- batches

    def _read_batch(self, offset: int) -> Records | None:
        """The stored batch that contains an offset, or the first one after it."""
        if offset < self.log.start_offset:
            return None
        found = self.log.read(offset, 1, self.log.high_watermark, at_least_one=True)
        if found is not None:
            self._reads += 1
            self._read_bytes += found.size
        return found

    def _find_open(self, offset: int) -> DecompressedBatch | None:
        """The batch that contains an offset, if it is open."""
        index = bisect_right(self._recent_offsets, offset) - 1
        if index >= 0 and _contains(self._recent[index], offset):
            return self._recent[index]
        for opened in (self._cache.held(self), self._cache.get(self.log, self._base_offset)):
            if opened is not None and _contains(opened, offset):
                return self._remember(opened)
        return None

    def _open(self, found: Records) -> DecompressedBatch | None:
        """The open batch; None while a thread reads it, after which records are read again."""
        return self._opening(self._cache.read(self.log, found, self._opened))

    def _decompress(self, data: bytes) -> DecompressedBatch | None:
        """The open batch; None while a thread decompresses it, after which records are read again."""
        return self._opening(self._cache.open(self.log, data, self._opened))

    def _opening(self, opened: DecompressedBatch | None) -> DecompressedBatch | None:
        if opened is None:
            self.is_opening = True
            return None
        return self._remember(opened)

    def _download(self, fault: ArchiveError) -> None:
        """Read again when the records are downloaded; after a failed download, at the next request."""
        if isinstance(fault, RemoteReadPending) and not self.is_opening:
            self.is_opening = True
            fault.load(self._downloaded)

    def _downloaded(self) -> None:
        self.is_opening = False
        self._on_open()

    def _opened(self, opened: DecompressedBatch | None) -> None:
        self.is_opening = False
        if opened is not None:  # after an error the next request reads again
            self._cache.hold(self, opened)
            self._on_open()

    def _remember(self, opened: DecompressedBatch) -> DecompressedBatch:
        index = bisect_right(self._recent_offsets, opened.header.base_offset)
        self._recent_offsets.insert(index, opened.header.base_offset)
        self._recent.insert(index, opened)
        return opened


def _contains(opened: DecompressedBatch, offset: int) -> bool:
    return opened.header.base_offset <= offset <= opened.header.last_offset
