"""Creates topics (CreateTopics), and describes the size of partitions (DescribeLogDirs)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from kio.schema.create_topics.v7 import CreateTopicsRequest, CreateTopicsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig
from kio.schema.describe_log_dirs.v2 import DescribeLogDirsRequest, DescribeLogDirsResponse
from kio.schema.describe_log_dirs.v2.request import DescribableLogDirTopic
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.client.errors import RequestRefused
from headrace.client.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.client.cluster import Cluster

BROKER_DEFAULT: Final = -1
"""The default number of partitions or replicas of the broker."""

_RETRIABLE: Final = frozenset(
    {ErrorCode.not_controller, ErrorCode.request_timed_out, ErrorCode.throttling_quota_exceeded}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


def create_topics(cluster: Cluster, topics: Iterable[NewTopic]) -> set[str]:
    """Create topics that do not exist, and return their names.

    Waits until every partition has a leader.
    """
    wanted = tuple(topics)
    if not wanted:
        return set()
    created = cluster.retry(partial(_create, cluster, wanted), _RETRIABLE)
    _await_leaders(cluster, [topic.name for topic in wanted])
    return created


def _create(cluster: Cluster, topics: Sequence[NewTopic]) -> set[str]:
    request = CreateTopicsRequest(topics=tuple(_creatable(topic) for topic in topics))
    response = cluster.controller().request(request, CreateTopicsResponse)
    created = set()
    for result in response.topics:
        if result.error_code is ErrorCode.none:
            created.add(str(result.name))
        elif result.error_code is not ErrorCode.topic_already_exists:
            act = f"create the topic {result.name!r}"
            raise RequestRefused(act, result.error_code, result.error_message)
    return created


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=TopicName(topic.name),
        num_partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def _await_leaders(cluster: Cluster, names: Sequence[str]) -> None:
    for name in names:
        cluster.leader(TopicPartition(name, 0))
    for topic in cluster.topics(names).values():
        for index in topic.partitions:
            cluster.leader(TopicPartition(topic.name, index))


def partition_sizes(cluster: Cluster, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """The size in bytes of the largest replica of each partition.

    Brokers that do not serve DescribeLogDirs are left out.
    """
    wanted = DescribableLogDirTopic(
        topic=TopicName(topic), partitions=tuple(i32(number) for number in partitions)
    )
    sizes: dict[int, int] = {}
    for broker in cluster.brokers():
        connection = cluster.connection(broker)
        if connection.serves(DescribeLogDirsRequest):
            response = connection.request(DescribeLogDirsRequest(topics=(wanted,)), DescribeLogDirsResponse)
            for number, size in _sizes_in(response):
                sizes[number] = max(size, sizes.get(number, 0))
    return sizes


def _sizes_in(response: DescribeLogDirsResponse) -> Iterable[tuple[int, int]]:
    for folder in response.results:
        for topic in folder.topics:
            for partition in topic.partitions:
                if not partition.is_future_key:
                    yield partition.partition_index, partition.partition_size
