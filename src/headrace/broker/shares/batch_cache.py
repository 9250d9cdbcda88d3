"""A cache of open batches: decompressed once, with the positions of the records that were parsed so far.

Many fetches read a few records each of one large batch, also for several groups. The cache is bounded, and
batches that were not used for a few seconds are dropped: an idle queue needs no memory.

The size of a compressed batch is not known before it is decompressed. A batch that may take longer than some
milliseconds is decompressed in a thread, a large one is also read there, and a callback receives it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import read_header
from headrace.protocol.decompressed_batch import DecompressedBatch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decompress_section
from headrace.storage.errors import DiskError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from headrace.broker.clock import BrokerClock
    from headrace.storage.log import Log, Records

    OnOpen = Callable[[DecompressedBatch | None], None]

log = logging.getLogger(__name__)

CACHE_BYTES: Final = 32 << 20
"""The maximum size of all open batches together, unless a single one is larger."""
MIN_CACHED_BYTES: Final = 4096
"""A smaller batch is not cached."""
IDLE_MS: Final = 5_000
INLINE_BYTES: Final = 128 * 1024
"""A compressed batch of this size is decompressed in a thread, and so is one that is more than eight times as
large when decompressed."""

LARGE_BATCH_BYTES: Final = 1 << 20
"""A batch of this size is read in a thread."""

Key = tuple["Log", int]
"""A log and the base offset of a batch."""


class BatchCache:
    """The open batches of all share groups of a broker."""

    def __init__(self, clock: BrokerClock, opener: Executor) -> None:
        self._clock = clock
        self._opener = opener
        self._size = 0
        self._batches: OrderedDict[Key, tuple[DecompressedBatch, int]] = OrderedDict()
        """With the time of the last use; the least recently used is first."""
        self._opening: dict[Key, list[OnOpen]] = {}
        self._held: dict[object, tuple[DecompressedBatch, int]] = {}
        """Batches that take several turns to parse: not evicted before their reader has used them."""
        self._has_timer = False

    def __len__(self) -> int:
        return len(self._batches) + len(self._held)

    def get(self, log: Log, base_offset: int) -> DecompressedBatch | None:
        """The batch with a base offset, if it is cached."""
        known = self._batches.get((log, base_offset))
        if known is None:
            return None
        self._batches[log, base_offset] = known[0], self._clock.now_ms()
        self._batches.move_to_end((log, base_offset))
        return known[0]

    def read(self, log: Log, found: Records, on_open: OnOpen) -> DecompressedBatch | None:
        """The open batch that was found; None if a thread reads it, after which `on_open` is called.

        `on_open` gets None if the batch could not be read.
        """
        key = (log, found.header().base_offset)
        if found.size < LARGE_BATCH_BYTES:
            return self.open(log, found.read(), on_open)
        known = self.get(*key)
        if known is None:
            self._open_later(key, lambda: _open(found.read()), on_open)
        return known

    def open(self, log: Log, data: bytes, on_open: OnOpen) -> DecompressedBatch | None:
        """The open batch; None if a thread decompresses it, after which `on_open` is called.

        A batch that cannot be decompressed has no records and a `fault`.
        """
        header = read_header(data)
        key = (log, header.base_offset)
        known = self.get(*key)
        if known is not None:
            return known
        if not header.codec:
            return self._keep(key, DecompressedBatch(data))
        if len(data) < INLINE_BYTES:
            try:
                section = decompress_section(data, header, 8 * INLINE_BYTES)
            except CorruptBatch:
                pass  # or it is larger: the thread decides
            else:
                return self._keep(key, DecompressedBatch(data, section=bytes(section)))
        self._open_later(key, partial(_open, data), on_open)
        return None

    def _open_later(self, key: Key, act: Callable[[], DecompressedBatch], on_open: OnOpen) -> None:
        if key not in self._opening:
            self._opening[key] = []
            future = asyncio.get_running_loop().run_in_executor(self._opener, act)
            future.add_done_callback(lambda done: self._opened(key, done))
        self._opening[key].append(on_open)

    def hold(self, reader: object, opened: DecompressedBatch) -> None:
        """Keep a batch for a reader that continues with it in the next turn; one per reader."""
        self._held[reader] = opened, self._clock.now_ms()
        self._start_timer()

    def held(self, reader: object) -> DecompressedBatch | None:
        """The batch that is held for a reader."""
        kept = self._held.get(reader)
        return None if kept is None else kept[0]

    def drop_held(self, reader: object) -> None:
        """Hold no batch for a reader any more."""
        self._held.pop(reader, None)

    def _opened(self, key: Key, done: asyncio.Future[DecompressedBatch]) -> None:
        waiting = self._opening.pop(key)
        if done.cancelled():
            return
        opened: DecompressedBatch | None = None
        if (fault := done.exception()) is None:
            opened = self._keep(key, done.result())
        else:
            log.error("The batch at offset %d could not be read", key[1], exc_info=fault)
        for on_open in waiting:
            on_open(opened)

    async def wait_open(self, log: Log, found: Records) -> DecompressedBatch:
        """The open batch, read or decompressed in a thread if necessary; raises `DiskError`."""
        future: asyncio.Future[DecompressedBatch | None] = asyncio.get_running_loop().create_future()
        opened = self.read(log, found, lambda done: None if future.done() else future.set_result(done))
        opened = await future if opened is None else opened
        if opened is None:
            raise DiskError("a record batch could not be read")
        return opened

    def _keep(self, key: Key, opened: DecompressedBatch) -> DecompressedBatch:
        if opened.size < MIN_CACHED_BYTES:
            return opened
        self._batches[key] = opened, self._clock.now_ms()
        self._size += opened.size
        while self._size > CACHE_BYTES and len(self._batches) > 1:
            self._evict()
        self._start_timer()
        return opened

    def _evict(self) -> None:
        _, (opened, _) = self._batches.popitem(last=False)
        self._size -= opened.size

    def _start_timer(self) -> None:
        if (self._batches or self._held) and not self._has_timer:
            self._has_timer = True
            self._clock.call_later(IDLE_MS, self._drop_idle)

    def _drop_idle(self) -> None:
        self._has_timer = False
        latest_ms = self._clock.now_ms() - IDLE_MS
        while self._batches and next(iter(self._batches.values()))[1] <= latest_ms:
            self._evict()
        for reader in [reader for reader, (_, used_ms) in self._held.items() if used_ms <= latest_ms]:
            del self._held[reader]
        self._start_timer()


def _open(data: bytes) -> DecompressedBatch:
    header = read_header(data)
    if not header.codec:
        return DecompressedBatch(data)
    try:
        section = decompress_section(data, header)
    except CorruptBatch as fault:
        return DecompressedBatch(data, section=b"", fault=str(fault))
    # Not copied to bytes: it may be large.
    return DecompressedBatch(data, section=section if isinstance(section, bytearray) else bytes(section))
