"""Batches that share groups are working on, opened: decompressed once, and with the records found so far.

Many fetches take a few records each of one large batch, and so do the groups that share it. The cache is
bounded, and what was not used for a few seconds is dropped: a queue at rest costs no memory.

How much a compressed batch holds is not known before it is opened. What may take longer than a millisecond or
two is decompressed in a thread: whoever wants it is called when it is there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import open_section
from headrace.protocol.slices import OpenBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from headrace.broker.clock import Clock
    from headrace.storage.log import Log

CACHE_BYTES: Final = 32 << 20
"""The most that all opened batches take together, unless a single one is larger."""
CACHED_BYTES: Final = 4096
"""A smaller batch is opened again rather than kept."""
IDLE_MS: Final = 5_000
INLINE_BYTES: Final = 128 * 1024
"""A compressed batch of this size is decompressed in the thread, and so is one that turns out to hold more
than eight times as much."""

Key = tuple["Log", int]
"""A log, and the base offset of a batch in it."""


class BatchCache:
    """The opened batches of all share groups of a broker."""

    def __init__(self, clock: Clock, opener: Executor) -> None:
        self._clock = clock
        self._opener = opener
        self._size = 0
        self._batches: OrderedDict[Key, tuple[OpenBatch, int]] = OrderedDict()
        """With the time of the last use; the one that was not used for longest is first."""
        self._opening: dict[Key, list[Callable[[OpenBatch], None]]] = {}
        self._held: dict[object, tuple[OpenBatch, int]] = {}
        """Batches that take several turns to open: not dropped before their reader has used them."""
        self._has_timer = False

    def __len__(self) -> int:
        return len(self._batches) + len(self._held)

    def get(self, log: Log, base_offset: int) -> OpenBatch | None:
        """The batch that begins at an offset, if it is here."""
        known = self._batches.get((log, base_offset))
        if known is None:
            return None
        self._batches[log, base_offset] = known[0], self._clock.now_ms()
        self._batches.move_to_end((log, base_offset))
        return known[0]

    def open(self, log: Log, data: bytes, on_open: Callable[[OpenBatch], None]) -> OpenBatch | None:
        """The batch in `data`; None when that takes longer, and then `on_open` is called with it.

        A batch that cannot be decompressed has no records, and a fault that says why.
        """
        header = read_header(data)
        key = (log, header.base_offset)
        known = self.get(*key)
        if known is not None:
            return known
        if not header.codec:
            return self._keep(key, OpenBatch(data))
        if len(data) < INLINE_BYTES:
            try:
                section = open_section(data, header, 8 * INLINE_BYTES)
            except CorruptBatch:
                pass  # or it holds more: the thread finds out
            else:
                return self._keep(key, OpenBatch(data, section=bytes(section)))
        if key not in self._opening:
            self._opening[key] = []
            future = asyncio.get_running_loop().run_in_executor(self._opener, _open, data)
            future.add_done_callback(lambda done: self._opened(key, done))
        self._opening[key].append(on_open)
        return None

    def hold(self, reader: object, opened: OpenBatch) -> None:
        """Keep a batch for a reader that comes back for it in another turn; one for each."""
        self._held[reader] = opened, self._clock.now_ms()
        self._watch()

    def held(self, reader: object) -> OpenBatch | None:
        """The batch that is kept for a reader."""
        kept = self._held.get(reader)
        return None if kept is None else kept[0]

    def let_go(self, reader: object) -> None:
        """Keep nothing for a reader any more."""
        self._held.pop(reader, None)

    def _opened(self, key: Key, done: asyncio.Future[OpenBatch]) -> None:
        waiting = self._opening.pop(key)
        if done.cancelled():
            return
        opened = self._keep(key, done.result())
        for on_open in waiting:
            on_open(opened)

    async def wait_open(self, log: Log, data: bytes) -> OpenBatch:
        """The batch in `data`, when it is open."""
        future: asyncio.Future[OpenBatch] = asyncio.get_running_loop().create_future()
        opened = self.open(log, data, lambda found: None if future.done() else future.set_result(found))
        return await future if opened is None else opened

    def _keep(self, key: Key, opened: OpenBatch) -> OpenBatch:
        if opened.size < CACHED_BYTES:
            return opened
        self._batches[key] = opened, self._clock.now_ms()
        self._size += opened.size
        while self._size > CACHE_BYTES and len(self._batches) > 1:
            self._drop_oldest()
        self._watch()
        return opened

    def _drop_oldest(self) -> None:
        _, (opened, _) = self._batches.popitem(last=False)
        self._size -= opened.size

    def _watch(self) -> None:
        if (self._batches or self._held) and not self._has_timer:
            self._has_timer = True
            self._clock.call_later(IDLE_MS, self._drop_idle)

    def _drop_idle(self) -> None:
        self._has_timer = False
        latest_ms = self._clock.now_ms() - IDLE_MS
        while self._batches and next(iter(self._batches.values()))[1] <= latest_ms:
            self._drop_oldest()
        for reader in [reader for reader, (_, used_ms) in self._held.items() if used_ms <= latest_ms]:
            del self._held[reader]
        self._watch()


def _open(data: bytes) -> OpenBatch:
    header = read_header(data)
    try:
        section = open_section(data, header)
    except CorruptBatch as fault:
        return OpenBatch(data, section=b"", fault=str(fault))
    # No copy as bytes: it may be large.
    return OpenBatch(data, section=section if isinstance(section, bytearray) else bytes(section))
