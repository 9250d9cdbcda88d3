"""The log of a view as a feed needs it: where it is, what is in it up to some point, and what follows.

What follows has to be complete. The offsets of a log follow one another without a gap until compaction or
retention takes something out, so a gap after the place where a reader was means that it missed a change, and
is an error. (Markers of transactions take offsets too; that is why the batches are looked at, not records.)
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import FetchRequest, FetchResponse
from kio.schema.fetch.v12.request import FetchPartition, FetchTopic
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from headrace.client.codes import MOVED
from headrace.client.errors import OffsetsGone, RequestRefused, UnknownPartition
from headrace.client.fetch import PartitionReader
from headrace.client.fetch_messages import measure_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.batch_headers import BatchHeaders
from headrace.columns.cutting import Cutter
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from kio.schema.fetch.v12.response import PartitionData

    from headrace.client.address import Address
    from headrace.client.cluster import Cluster

WAIT_MS: Final = 500
"""How long the broker holds back an answer that would be empty."""
SHARED_WAIT_MS: Final = 50
"""The same where several brokers are asked in turn: one that is quiet must not hold up the others."""
FETCH_BYTES: Final = 1 << 20
LEAST_BYTES: Final = 64 << 10
"""Of each partition: one with a backlog must not hold up the others."""
COLUMNS: Final = ("key", "value", "offset")
NO_END: Final = (1 << 63) - 1


class Entry(NamedTuple):
    """A record: a row of the view, or the end of one."""

    offset: int
    key: bytes | None
    value: bytes | None


class News(NamedTuple):
    """What a partition brought."""

    partition: int
    entries: list[Entry]
    next_offset: int


class ViewLog:
    """The topic of one view. For one thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self.topic = topic

    def identity(self) -> str:
        """The id of the topic; empty where the cluster gives none."""
        return self._cluster.persist(self._ask_identity, MOVED)

    def partitions(self) -> int:
        """How many partitions the topic has."""
        found = self._cluster.topics((self.topic,))
        if self.topic not in found:
            raise UnknownPartition(TopicPartition(self.topic, 0))
        return len(found[self.topic].partitions)

    def extents(self) -> tuple[tuple[int, int], ...]:
        """The first offset of each partition, and the one after its last committed record."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions())]
        first, end = (
            list_offsets(self._cluster, dict.fromkeys(partitions, which)) for which in (EARLIEST, LATEST)
        )
        return tuple((first[partition], end[partition]) for partition in partitions)

    def rows(self, partition: int, start: int, end: int) -> list[Entry]:
        """The newest record of each key before `end`, without those that are deleted, in their order."""
        place = TopicPartition(self.topic, partition)
        newest: dict[bytes | None, Entry] = {}
        cutter = Cutter(place, start, end, columns=COLUMNS)
        for piece in PartitionReader(self._cluster, place, start, end):
            for rows in cutter.parts(piece.batches, piece.aborted):
                for entry in _entries(rows):
                    newest.pop(entry.key, None)  # so that a key stands where its newest record is
                    if entry.value is not None:
                        newest[entry.key] = entry
        return list(newest.values())

    def follow(self, offsets: Sequence[int]) -> list[News]:
        """What comes next in the partitions, waiting for it a little; nothing where nothing came.

        `OffsetsGone` when something that came before it is gone.
        """
        return self._cluster.persist(lambda: list(self._fetch(offsets)), MOVED)

    def _fetch(self, offsets: Sequence[int]) -> Iterator[News]:
        leaders: dict[Address, dict[int, int]] = {}
        for number, offset in enumerate(offsets):
            address = self._cluster.leader_address(TopicPartition(self.topic, number))
            leaders.setdefault(address, {})[number] = offset
        wait_ms = WAIT_MS if len(leaders) == 1 else SHARED_WAIT_MS
        for address, wanted in leaders.items():
            request = _request(self.topic, wanted, wait_ms)
            response = self._cluster.connection(address).ask(request, FetchResponse)
            if response.error_code is not ErrorCode.none:
                raise RequestRefused(f"read {self.topic!r}", response.error_code)
            for topic in response.responses:
                for answer in topic.partitions:
                    yield from self._news(answer, wanted[answer.partition_index])

    def _news(self, answer: PartitionData, position: int) -> Iterator[News]:
        place = TopicPartition(self.topic, answer.partition_index)
        if answer.error_code is ErrorCode.offset_out_of_range:
            first, end = self.extents()[answer.partition_index]
            if not first <= position <= end:
                raise OffsetsGone(place, position, first, end)
            raise RequestRefused(f"read {place} from {position}", ErrorCode.offset_not_available)
        if answer.error_code is not ErrorCode.none:
            raise RequestRefused(f"read {place} from {position}", answer.error_code)
        records = memoryview(answer.records or b"")
        size, next_offset = measure_batches(records, NO_END)
        if size:
            aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
            entries = _complete(place, position, records[:size], aborted)
            yield News(answer.partition_index, entries, max(next_offset, position))

    def _ask_identity(self) -> str:
        connection = self._cluster.any()
        if not connection.serves(MetadataRequest):
            return ""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.topic))
        request = MetadataRequest(
            topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (found,) = connection.ask(request, MetadataResponse).topics
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(f"describe the topic {self.topic!r}", found.error_code)
        return "" if found.topic_id is None else found.topic_id.hex


def _request(topic: str, wanted: Mapping[int, int], wait_ms: int) -> FetchRequest:
    share = i32(max(LEAST_BYTES, FETCH_BYTES // len(wanted)))
    return FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=i32(1),
        max_bytes=i32(share * len(wanted)),
        isolation_level=i8(1),
        topics=(
            FetchTopic(
                topic=TopicName(topic),
                partitions=tuple(
                    FetchPartition(partition=i32(number), fetch_offset=i64(offset), partition_max_bytes=share)
                    for number, offset in wanted.items()
                ),
            ),
        ),
        forgotten_topics_data=(),
    )


def _complete(
    place: TopicPartition, position: int, batches: memoryview, aborted: Sequence[tuple[int, int]]
) -> list[Entry]:
    """The records from `position` on, which have to be there without a gap."""
    headers = BatchHeaders(octets(batches))
    bases, lasts = headers["base_offset"].tolist(), headers.last_offsets.tolist()
    expected = position
    for base, last in zip(bases, lasts, strict=True):
        if base > expected:
            raise OffsetsGone(place, expected, base, lasts[-1] + 1)
        expected = max(expected, last + 1)
    seen = headers.visible(position, NO_END, aborted).tolist()
    cutter = Cutter(place, position, NO_END, columns=COLUMNS)
    entries = [entry for rows in cutter.parts(batches, aborted) for entry in _entries(rows)]
    if len(entries) < sum(lasts[index] + 1 - max(bases[index], position) for index in seen):
        raise OffsetsGone(place, position, lasts[-1] + 1, lasts[-1] + 1)
    return entries


def _entries(rows: pa.RecordBatch) -> Iterator[Entry]:
    keys, values, offsets = (rows.column(name).to_pylist() for name in COLUMNS)
    return map(Entry, offsets, keys, values)
