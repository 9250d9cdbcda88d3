"""A client of the broker of each test, and a topic of its own."""

from collections.abc import Iterator

import pytest

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from tests.client.batches import fresh_name


@pytest.fixture
def bootstrap(any_bootstrap: str) -> str:
    """The address of the broker of this test."""
    return any_bootstrap


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    """The broker of this test."""
    with Cluster.of(bootstrap) as cluster:
        yield cluster


@pytest.fixture
def partitions(cluster: Cluster) -> list[TopicPartition]:
    """The three partitions of a new topic."""
    topic = fresh_name("topic")
    create_topics(cluster, [NewTopic(name=topic, partitions=3)])
    return [TopicPartition(topic, index) for index in range(3)]


@pytest.fixture
def partition(partitions: list[TopicPartition]) -> TopicPartition:
    """One partition of a new topic."""
    return partitions[0]
