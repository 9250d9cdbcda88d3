"""The next record batches of any number of partitions (Fetch), for readers that follow a log.

    for fetched in fetch_batches(cluster, {TopicPartition("orders", 0): 17}, max_wait_ms=500):
        work_on(fetched.batches, fetched.aborted)

A reader of a range that has an end uses `PartitionReader` instead.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import FetchRequest, FetchResponse
from kio.schema.fetch.v12.request import FetchPartition, FetchTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from headrace.client.error_codes import LEADER_CHANGED
from headrace.client.errors import OffsetsGone, RequestRefused
from headrace.client.fetch_messages import measure_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kio.schema.fetch.v12.response import PartitionData

    from headrace.client.address import Address
    from headrace.client.cluster import Cluster

SHARED_WAIT_MS: Final = 50
"""The longest wait when several brokers are asked in turn: an idle one must not delay the others."""
FETCH_BYTES: Final = 1 << 20
MIN_PARTITION_BYTES: Final = 64 << 10
"""The share of each partition: one with a backlog must not delay the others."""
NO_END: Final = (1 << 63) - 1


class FetchedBatches(NamedTuple):
    """Whole batches of one partition that follow one another, and what is needed to read them."""

    partition: TopicPartition
    batches: memoryview
    aborted: Sequence[tuple[int, int]]
    """Producer id and first offset of each aborted transaction among the batches."""
    next_offset: int


def fetch_batches(
    cluster: Cluster, positions: Mapping[TopicPartition, int], *, max_wait_ms: int
) -> list[FetchedBatches]:
    """What follows these offsets and is committed; an empty list if nothing arrives within `max_wait_ms`.

    Leaders that move are waited for. `OffsetsGone` is raised for an offset that its partition does not hold.
    """
    return cluster.persist(lambda: list(_fetch(cluster, positions, max_wait_ms)), LEADER_CHANGED)


def _fetch(
    cluster: Cluster, positions: Mapping[TopicPartition, int], max_wait_ms: int
) -> Iterator[FetchedBatches]:
    leaders: dict[Address, dict[TopicPartition, int]] = {}
    for partition, offset in positions.items():
        leaders.setdefault(cluster.leader_address(partition), {})[partition] = offset
    wait_ms = max_wait_ms if len(leaders) == 1 else min(max_wait_ms, SHARED_WAIT_MS)
    for address, wanted in leaders.items():
        response = cluster.connection(address).ask(_request(wanted, wait_ms), FetchResponse)
        if response.error_code is not ErrorCode.none:
            raise RequestRefused("fetch records", response.error_code)
        for topic in response.responses:
            for answer in topic.partitions:
                partition = TopicPartition(topic.topic, answer.partition_index)
                yield from _fetched(cluster, answer, partition, wanted[partition])


def _fetched(
    cluster: Cluster, answer: PartitionData, partition: TopicPartition, position: int
) -> Iterator[FetchedBatches]:
    if answer.error_code is ErrorCode.offset_out_of_range:
        first, end = (
            list_offsets(cluster, {partition: which}, read_committed=False)[partition]
            for which in (EARLIEST, LATEST)
        )
        if not first <= position <= end:
            raise OffsetsGone(partition, position, first, end)
        raise RequestRefused(f"read {partition} from {position}", ErrorCode.offset_not_available)
    if answer.error_code is not ErrorCode.none:
        raise RequestRefused(f"read {partition} from {position}", answer.error_code)
    records = memoryview(answer.records or b"")
    size, next_offset = measure_batches(records, NO_END)
    if size:
        aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        yield FetchedBatches(partition, records[:size], aborted, max(next_offset, position))


def _request(wanted: Mapping[TopicPartition, int], wait_ms: int) -> FetchRequest:
    share = i32(max(MIN_PARTITION_BYTES, FETCH_BYTES // len(wanted)))
    return FetchRequest(
        max_wait=i32Timedelta.parse(timedelta(milliseconds=wait_ms)),
        min_bytes=i32(1),
        max_bytes=i32(share * len(wanted)),
        isolation_level=i8(1),
        topics=tuple(
            FetchTopic(
                topic=TopicName(topic),
                partitions=tuple(
                    FetchPartition(partition=i32(number), fetch_offset=i64(offset), partition_max_bytes=share)
                    for number, offset in offsets
                ),
            )
            for topic, offsets in by_topic(wanted.items()).items()
        ),
        forgotten_topics_data=(),
    )
