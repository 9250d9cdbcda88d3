"""Dead letters of share groups: the dead-letter topic, its records, and writing each of them exactly once.

Three steps, each in its log before the next: the record is archiving, with the current end of the dead-letter
topic; the dead letter; the record is acknowledged. After a crash between them the broker searches the dead
letter from that position and writes it only if it is missing.

Dead letters are written in parts, so that thousands of them do not block other requests; a large one is
copied and written in steps. A batch, or the rest of one, that cannot be read is one dead letter, whose value
is the batch.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.protocol.batch import build_batch_steps, read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch, encode_record_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.clock import BrokerClock
    from headrace.broker.flusher import Flusher
    from headrace.broker.scheduling import RequestScheduler
    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.shares.progress import PendingDeadLetter
    from headrace.broker.shares.records import SharePartitionKey
    from headrace.broker.topics import Partition, Topics
    from headrace.protocol.compression import Bytes
    from headrace.protocol.decompressed_batch import DecompressedBatch
    from headrace.protocol.records import Record, RecordView
    from headrace.storage.log import Log

log = logging.getLogger(__name__)

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERIES: Final = "__dlq.errors.delivery.count"
REASON: Final = "__dlq.errors.message"
"""The headers of a dead letter have the names of Apache Kafka 4.4 (KIP-1191)."""
LAST_OFFSET: Final = "headrace-errors-last-offset"
"""The last offset of a dead letter for several records: a batch that cannot be read."""
NAMES: Final = frozenset({TOPIC, PARTITION, OFFSET, GROUP, DELIVERIES, REASON, LAST_OFFSET})

MAX_TOPIC_NAME: Final = 249
MAX_DEAD_LETTERS: Final = 100
"""Dead letters that are written before other requests are served: some milliseconds."""
MAX_DEAD_LETTER_BYTES: Final = 1 << 20
"""A larger dead letter is a batch of its own."""
MAX_DEAD_LETTER_HEADERS: Final = 5_000
MAX_PARSED_RECORDS: Final = 2_000

_INVALID_CHARACTER: Final = re.compile(r"[^a-zA-Z0-9._-]")


class DeadLetterOrigin(NamedTuple):
    """The record of a dead letter; of several records, the last one."""

    group: str
    partition: int
    offset: int


def dead_letter_topic(topic: str, group: str) -> str:
    """The dead-letter topic of `group` on `topic`.

    >>> dead_letter_topic("orders", "mailer")
    'orders.mailer.dead'

    Characters of a group id that are invalid in a topic name become `-`, and a hash makes the name unique.
    """
    name = f"{topic}.{group}.dead"
    if len(name) <= MAX_TOPIC_NAME and not _INVALID_CHARACTER.search(name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    valid = _INVALID_CHARACTER.sub("-", f"{topic}.{group}")[: MAX_TOPIC_NAME - len(digest) - len(".-.dead")]
    return f"{valid}-{digest}.dead"


class DeadLetter(NamedTuple):
    """A record of the dead-letter topic; key and value are views of the original."""

    key: Bytes | None
    value: Bytes | None
    headers: tuple[tuple[str, Bytes | None], ...]

    @property
    def size(self) -> int:
        """The size of its key and value."""
        return len(self.key or b"") + len(self.value or b"")


def build_dead_letter(
    record: RecordView | None, key: SharePartitionKey, topic: str, offset: int, pending: PendingDeadLetter
) -> DeadLetter:
    """The dead letter of a record; only the headers if the record is no longer in the log."""
    origin = _origin_headers(key, topic, offset, pending, pending.reason.text)
    if record is None:
        return DeadLetter(None, None, origin)
    kept = tuple(header for header in record.headers if header[0] not in NAMES)
    return DeadLetter(record.key, record.value, (*kept, *origin))


def build_unreadable_dead_letter(
    opened: DecompressedBatch, key: SharePartitionKey, topic: str, last: int, pending: PendingDeadLetter
) -> DeadLetter:
    """The dead letter of all records of a batch, up to its end, that cannot be read."""
    first = opened.next_offset
    reason = (
        f"Offsets {first} to {last} cannot be read: {opened.fault}. The value is the record batch as stored."
    )
    origin = _origin_headers(key, topic, first, pending, reason)
    return DeadLetter(None, opened.data, (*origin, (LAST_OFFSET, b"%d" % last)))


def _origin_headers(
    key: SharePartitionKey, topic: str, offset: int, pending: PendingDeadLetter, reason: str
) -> tuple[tuple[str, Bytes | None], ...]:
    return (
        (TOPIC, topic.encode()),
        (PARTITION, b"%d" % key.partition),
        (OFFSET, b"%d" % offset),
        (GROUP, key.group.encode()),
        (DELIVERIES, b"%d" % pending.deliveries),
        (REASON, reason.encode()),
    )


def read_origins(log_: Log, position: int) -> set[DeadLetterOrigin]:
    """The origins of all dead letters from `position`; records of others are ignored."""
    origins: set[DeadLetterOrigin] = set()
    for data in log_.batches(max(position, log_.start_offset)):
        for batch in split_batches(memoryview(data)):
            if not read_header(batch).is_control:
                with suppress(CorruptBatch):
                    origins.update(_read_origin(record) for record in decode_batch(batch))
    return origins


def _read_origin(record: Record) -> DeadLetterOrigin:
    headers = dict(record.headers)
    group, partition = (headers.get(name) or b"" for name in (GROUP, PARTITION))
    offset = headers.get(LAST_OFFSET) or headers.get(OFFSET) or b""
    if not (partition.isdigit() and offset.isdigit()):
        return DeadLetterOrigin("", -1, -1)
    return DeadLetterOrigin(group.decode(errors="replace"), int(partition), int(offset))


class DeadLetterWriter:
    """Writes the dead letters of share partitions."""

    def __init__(
        self,
        topics: Topics,
        flusher: Flusher,
        clock: BrokerClock,
        cache: BatchCache,
        scheduler: RequestScheduler,
    ) -> None:
        self._topics = topics
        self._flusher = flusher
        self._clock = clock
        self._cache = cache
        self._scheduler = scheduler
        self._large = asyncio.Lock()
        """Held while a large dead letter is written."""

    def prepare(self, share_partition: SharePartition) -> None:
        """Set the current end of the dead-letter topic for archiving records, before these are stored."""
        try:
            position = self._dead_letter_partition(share_partition).log.end_offset
        except HeadraceError as fault:
            log.warning("The dead-letter topic of group %s is missing: %s", share_partition.key.group, fault)
            position = 0
        share_partition.state.progress.set_dead_letter_position(position)

    def recover(self, share_partition: SharePartition) -> None:
        """Acknowledge archiving records whose dead letters were written before a crash."""
        key, archiving = share_partition.key, share_partition.state.progress.archiving
        topic = self._topics.get(dead_letter_topic(share_partition.partition.topic, key.group))
        if not archiving or topic is None:
            return
        position = max(min(pending.position for pending in archiving.values()), 0)
        written = read_origins(topic.partitions[0].log, position)
        for offset in list(archiving):
            if DeadLetterOrigin(key.group, key.partition, offset) in written:
                share_partition.state.dead_letter_written(offset)

    async def write(self, share_partition: SharePartition, store: Callable[[], None]) -> None:
        """Write the dead letters of all archiving records; `store` stores the new state."""
        archiving = share_partition.state.progress.archiving
        await self._flusher.durable()
        while archiving and not share_partition.is_closed:
            await self._write_some(share_partition, sorted(islice(archiving, MAX_DEAD_LETTERS)))
            store()
            await asyncio.sleep(0)

    async def _write_some(self, share_partition: SharePartition, offsets: Sequence[int]) -> None:
        dead_letters = await self._build(share_partition, offsets)
        if share_partition.is_closed:
            return
        if sum(each.size for each in dead_letters.values()) > MAX_DEAD_LETTER_BYTES:
            await self._append_large(share_partition, *dead_letters.values())
        else:
            self._append(share_partition, list(dead_letters.values()))
        await self._flusher.durable()
        for offset in dead_letters:
            share_partition.state.dead_letter_written(offset)

    async def _build(self, share_partition: SharePartition, offsets: Sequence[int]) -> dict[int, DeadLetter]:
        """The dead letters by offset, up to a maximum size; a larger one is alone."""
        dead_letters: dict[int, DeadLetter] = {}
        size = headers = 0
        opened: DecompressedBatch | None = None
        for offset in offsets:
            if opened is None or not opened.header.base_offset <= offset <= opened.header.last_offset:
                opened = await self._open(share_partition, offset)
            dead_letter = await self._build_one(share_partition, opened, offset)
            size += dead_letter.size
            if dead_letters and size > MAX_DEAD_LETTER_BYTES:
                break
            dead_letters[offset] = dead_letter
            headers += len(dead_letter.headers)
            if headers >= MAX_DEAD_LETTER_HEADERS:
                break
        return dead_letters

    async def _open(self, share_partition: SharePartition, offset: int) -> DecompressedBatch | None:
        """The batch of a record; None if it is no longer in the log."""
        source = share_partition.partition.log
        if offset < source.start_offset:
            return None
        found = source.read(offset, 1, source.end_offset, at_least_one=True)
        if found is None:
            return None
        opened = await self._cache.wait_open(source, found)
        return opened if opened.header.base_offset <= offset else None

    async def _build_one(
        self, share_partition: SharePartition, opened: DecompressedBatch | None, offset: int
    ) -> DeadLetter:
        while opened is not None and opened.next_offset <= offset and opened.fault is None:
            opened.find(MAX_PARSED_RECORDS)
            await asyncio.sleep(0)
        pending = share_partition.state.progress.archiving[offset]
        origin = (share_partition.key, share_partition.partition.topic, offset, pending)
        if opened is None:
            return build_dead_letter(None, *origin)
        index = opened.index_of(offset)
        if index is None and opened.fault is not None:
            return build_unreadable_dead_letter(opened, *origin)
        return build_dead_letter(None if index is None else opened.view(index), *origin)

    def _append(self, share_partition: SharePartition, dead_letters: Sequence[DeadLetter]) -> None:
        target = self._dead_letter_partition(share_partition)
        records = b"".join(
            part
            for delta, each in enumerate(dead_letters)
            for part in encode_record_parts(each.key, each.value, each.headers, delta)
        )
        target.log.append_internal(records, len(dead_letters), self._clock.now_ms())
        self._flusher.appended(target)

    async def _append_large(self, share_partition: SharePartition, dead_letter: DeadLetter) -> None:
        """Copy and write a large dead letter in time slices."""
        target = self._dead_letter_partition(share_partition)
        now_ms = self._clock.now_ms()
        record = encode_record_parts(dead_letter.key, dead_letter.value, dead_letter.headers, 0)
        steps = build_batch_steps(record, 1, base_timestamp=now_ms, max_timestamp=now_ms)
        async with self._large:
            time_slice = self._scheduler.time_slice()
            try:
                batch = memoryview(await time_slice.run(steps))
                await time_slice.run(target.log.stage(batch))
                target.log.append_built(batch)
            finally:
                target.log.discard_staged()
                time_slice.release()
        self._flusher.appended(target)

    def _dead_letter_partition(self, share_partition: SharePartition) -> Partition:
        name = dead_letter_topic(share_partition.partition.topic, share_partition.key.group)
        topic = self._topics.get(name) or self._topics.create(name, 1, {})
        return topic.partitions[0]
