"""From a share group into its topic of dead letters: each record once, whatever happens in between.

Three steps, each in the log before the next: that the record is to become a dead letter, and where that topic
ends now; the letter; that the record is done. A broker that starts and finds a record at the first step looks
for its letter from that place on, and writes it only if it is not there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.broker.shares.dead_letters import (
    Place,
    dead_letter_topic,
    read_places,
    read_record,
    write_letter,
)
from headrace.errors import HeadraceError
from headrace.protocol.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.shares.share import Share
    from headrace.broker.topics import Topics

log = logging.getLogger(__name__)


class Burials:
    """Writes dead letters."""

    def __init__(self, topics: Topics, flusher: Flusher, clock: Clock) -> None:
        self._topics = topics
        self._flusher = flusher
        self._clock = clock

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
        await self._flusher.durable()
        while share.state.progress.archiving:
            offsets = list(share.state.progress.archiving)
            self._write(share, offsets)
            await self._flusher.durable()
            for offset in offsets:
                share.state.buried(offset)
            store()

    def _write(self, share: Share, offsets: list[int]) -> None:
        dead = self._partition(share)
        now_ms = self._clock.now_ms()
        letters = [
            write_letter(
                read_record(share.partition.log, offset),
                share.key,
                share.partition.topic,
                offset,
                share.state.progress.archiving[offset],
            )._replace(timestamp=now_ms)
            for offset in offsets
        ]
        dead.log.append_own(encode_records(letters, now_ms), len(letters), now_ms)
        self._flusher.appended(dead)

    def _partition(self, share: Share) -> Partition:
        name = dead_letter_topic(share.partition.topic, share.key.group)
        topic = self._topics.get(name) or self._topics.create(name, 1, {})
        return topic.partitions[0]
