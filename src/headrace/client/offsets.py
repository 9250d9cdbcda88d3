"""Where partitions begin and end, and where a time falls in them (ListOffsets)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v6 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v6.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.codes import MOVED
from headrace.client.errors import RequestRefused
from headrace.client.partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.address import Address
    from headrace.client.cluster import Cluster

EARLIEST: Final = -2
"""Asks for the first offset that a partition still holds."""
LATEST: Final = -1
"""Asks for the offset that the next record will get, or the first one that is not yet decided."""

_NO_BROKER: Final = BrokerId(-1)


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
) -> dict[TopicPartition, int]:
    """An offset for each partition: of its beginning, of its end, or of a time.

    A time is milliseconds since 1970 and gives the first offset at or after it, −1 where there is none. With
    `read_committed` the end is the last stable offset: where the first open transaction begins.
    """
    found: dict[TopicPartition, int] = {}

    def ask_all() -> None:
        missing = {partition: wanted[partition] for partition in wanted if partition not in found}
        for address, part in _by_leader(cluster, missing).items():
            found.update(_ask(cluster, address, part, read_committed=read_committed))

    cluster.persist(ask_all, MOVED)
    return {partition: found[partition] for partition in wanted}


def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[Address, dict[TopicPartition, int]]:
    parts: dict[Address, dict[TopicPartition, int]] = {}
    for partition, time in wanted.items():
        parts.setdefault(cluster.leader_address(partition), {})[partition] = time
    return parts


def _ask(
    cluster: Cluster, address: Address, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, int]:
    topics = tuple(_topic(name, times) for name, times in by_topic(wanted.items()).items())
    request = ListOffsetsRequest(replica_id=_NO_BROKER, isolation_level=i8(read_committed), topics=topics)
    response = cluster.connection(address).ask(request, ListOffsetsResponse)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if answer.error_code is not ErrorCode.none:
                raise RequestRefused(f"find an offset of {partition}", answer.error_code)
            found[partition] = answer.offset
    return found


def _topic(name: str, times: list[tuple[int, int]]) -> ListOffsetsTopic:
    partitions = (
        ListOffsetsPartition(partition_index=i32(index), timestamp=i64(time)) for index, time in times
    )
    return ListOffsetsTopic(name=TopicName(name), partitions=tuple(partitions))
