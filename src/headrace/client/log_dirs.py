"""How many bytes the partitions of a topic take on the brokers' disks (DescribeLogDirs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.describe_log_dirs.v2 import DescribeLogDirsRequest, DescribeLogDirsResponse
from kio.schema.describe_log_dirs.v2.request import DescribableLogDirTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.cluster import Cluster


def partition_sizes(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The bytes of each partition's largest replica; a partition is left out where no broker says.

    A broker that does not serve DescribeLogDirs says nothing.
    """
    asked = DescribableLogDirTopic(
        topic=TopicName(topic), partitions=tuple(i32(number) for number in partitions)
    )
    sizes: dict[int, int] = {}
    for broker in cluster.brokers():
        connection = cluster.connection(broker)
        if connection.serves(DescribeLogDirsRequest):
            response = connection.ask(DescribeLogDirsRequest(topics=(asked,)), DescribeLogDirsResponse)
            for number, size in _sizes_in(response):
                sizes[number] = max(size, sizes.get(number, 0))
    return sizes


def _sizes_in(response: DescribeLogDirsResponse) -> Iterable[tuple[int, int]]:
    for folder in response.results:
        for topic in folder.topics:
            for partition in topic.partitions:
                if not partition.is_future_key:
                    yield partition.partition_index, partition.partition_size
