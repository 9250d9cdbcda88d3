"""From a share group into its topic of dead letters: each record once, whatever happens in between.

Three steps, each in the log before the next: that the record is to become a dead letter, and where that topic
ends now; the letter; that the record is done. A broker that starts and finds a record at the first step looks
for its letter from that place on, and writes it only if it is not there.

Letters are written some at a time, so that thousands of them do not keep others waiting. A batch, or the rest
of one, that cannot be read is one letter, with the batch as its value.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.broker.shares.dead_letters import (
    Place,
    dead_letter_topic,
    read_places,
    write_letter,
    write_unreadable,
)
from headrace.errors import HeadraceError
from headrace.protocol.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.share import Share
    from headrace.broker.topics import Topics
    from headrace.protocol.records import NewRecord
    from headrace.protocol.slices import OpenBatch

log = logging.getLogger(__name__)

LETTERS: Final = 100
"""Letters that are written before others are served: some milliseconds."""
LETTER_BYTES: Final = 1 << 20
FIND_RECORDS: Final = 2_000


class Burials:
    """Writes dead letters."""

    def __init__(self, topics: Topics, flusher: Flusher, clock: Clock, cache: BatchCache) -> None:
        self._topics = topics
        self._flusher = flusher
        self._clock = clock
        self._cache = cache

    def decide(self, share: Share) -> None:
        """Note where the topic of dead letters ends, for what is to be stored with the decision."""
        try:
            position = self._partition(share).log.end_offset
        except HeadraceError as fault:
            log.warning("%s: %s", share.key.group, fault)
            position = 0
        share.state.progress.locate_burials(position)

    def recover(self, share: Share) -> None:
        """Be done with records whose letters a broker wrote before it was killed."""
        archiving = share.state.progress.archiving
        topic = self._topics.get(dead_letter_topic(share.partition.topic, share.key.group))
        if not archiving or topic is None:
            return
        position = max(min(burial.position for burial in archiving.values()), 0)
        written = read_places(topic.partitions[0].log, position)
        for offset in list(archiving):
            if Place(share.key.group, share.key.partition, offset) in written:
                share.state.buried(offset)

    async def bury(self, share: Share, store: Callable[[], None]) -> None:
        """Write the letters that are due; `store` keeps what the share partition then knows."""
        archiving = share.state.progress.archiving
        await self._flusher.durable()
        while archiving and not share.is_closed:
            await self._bury_some(share, sorted(islice(archiving, LETTERS)))
            store()
            await asyncio.sleep(0)

    async def _bury_some(self, share: Share, offsets: Sequence[int]) -> None:
        letters = await self._letters(share, offsets)
        if share.is_closed:
            return
        self._append(share, list(letters.values()))
        await self._flusher.durable()
        for offset in letters:
            share.state.buried(offset)

    async def _letters(self, share: Share, offsets: Sequence[int]) -> dict[int, NewRecord]:
        """The letters of these records by their offsets, or of the first of them when they are large."""
        letters: dict[int, NewRecord] = {}
        size = 0
        opened: OpenBatch | None = None
        for offset in offsets:
            if opened is None or not opened.header.base_offset <= offset <= opened.header.last_offset:
                opened = await self._open(share, offset)
            letters[offset] = await self._letter(share, opened, offset)
            size += len(letters[offset].value or b"")
            if size >= LETTER_BYTES:
                break
        return letters

    async def _open(self, share: Share, offset: int) -> OpenBatch | None:
        """The batch that holds a record; None when the log has lost it."""
        source = share.partition.log
        if offset < source.start_offset:
            return None
        found = source.read(offset, 1, source.end_offset, at_least_one=True)
        if found is None:
            return None
        opened = await self._cache.wait_open(source, found.read())
        return opened if opened.header.base_offset <= offset else None

    async def _letter(self, share: Share, opened: OpenBatch | None, offset: int) -> NewRecord:
        while opened is not None and opened.next_offset <= offset and opened.fault is None:
            opened.find(FIND_RECORDS)
            await asyncio.sleep(0)
        origin = (share.key, share.partition.topic, offset, share.state.progress.archiving[offset])
        if opened is None:
            return write_letter(None, *origin)
        index = opened.index_of(offset)
        if index is None and opened.fault is not None:
            return write_unreadable(opened, *origin)
        return write_letter(None if index is None else opened.record(index), *origin)

    def _append(self, share: Share, letters: Sequence[NewRecord]) -> None:
        dead = self._partition(share)
        now_ms = self._clock.now_ms()
        records = encode_records([letter._replace(timestamp=now_ms) for letter in letters], now_ms)
        dead.log.append_own(records, len(letters), now_ms)
        self._flusher.appended(dead)

    def _partition(self, share: Share) -> Partition:
        name = dead_letter_topic(share.partition.topic, share.key.group)
        topic = self._topics.get(name) or self._topics.create(name, 1, {})
        return topic.partitions[0]
