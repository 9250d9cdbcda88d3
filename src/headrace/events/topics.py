"""The topics of a store: four for each class of aggregates, all partitioned by the id of the aggregate.

| topic | holds | kept |
|---|---|---|
| `shop.Cart.events` | one record for each event | forever |
| `shop.Cart.commands` | commands from processes that do not handle their partition | a day |
| `shop.Cart.replies` | the reply to each command | a week |
| `shop.Cart.snapshots` | the state of aggregates, and how far snapshots cover the events | the newest |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition, partition_of
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.cluster import Cluster

DAY_MS: Final = 24 * 3_600_000
PARTITIONS: Final = 4
"""The number of partitions of a new class of aggregates; it cannot change later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTopics:
    """The names of the topics of one class of aggregates in one store, and their partitions."""

    store: str
    aggregate: str
    partitions: int

    @property
    def events(self) -> str:
        """The topic of events."""
        return events_topic(self.store, self.aggregate)

    @property
    def commands(self) -> str:
        """The topic of commands that another process handles."""
        return f"{self.store}.{self.aggregate}.commands"

    @property
    def replies(self) -> str:
        """The topic of replies."""
        return f"{self.store}.{self.aggregate}.replies"

    @property
    def snapshots(self) -> str:
        """The topic of snapshots."""
        return f"{self.store}.{self.aggregate}.snapshots"

    @property
    def group(self) -> str:
        """The consumer group of the handlers."""
        return f"{self.store}.{self.aggregate}.handlers"

    def transactional_id(self, partition: int) -> str:
        """The transactional id of the handler of a partition."""
        return f"headrace.events.{self.store}.{self.aggregate}.{partition}"

    def partition_of(self, key: str) -> int:
        """The partition of an aggregate."""
        return partition_of(key.encode(), self.partitions)


def events_topic(store: str, aggregate: str) -> str:
    """The topic of the events of a class of aggregates."""
    return f"{store}.{aggregate}.events"


def open_topics(cluster: Cluster, store: str, aggregate: str, partitions: int = PARTITIONS) -> StoreTopics:
    """The topics of a class of aggregates; missing ones are created."""
    found = cluster.topics((events_topic(store, aggregate),))
    if found:
        partitions = len(found[events_topic(store, aggregate)].partitions)
    topics = StoreTopics(store=store, aggregate=aggregate, partitions=partitions)
    create_topics(cluster, _new_topics(topics))
    return topics


def find_topics(cluster: Cluster, store: str, aggregate: str) -> StoreTopics:
    """The topics of a class of aggregates, or an error that names the classes with topics."""
    name = events_topic(store, aggregate)
    found = cluster.topics((name,))
    if not found:
        known = ", ".join(stores(cluster)) or "none"
        raise Misuse(
            f"the store {store!r} has no events of {aggregate}: the topic {name} does not exist. "
            f"Aggregates with events: {known}."
        )
    return StoreTopics(store=store, aggregate=aggregate, partitions=len(found[name].partitions))


def stores(cluster: Cluster) -> list[str]:
    """The classes of aggregates that have topics, each as `store.aggregate`."""
    names = set(cluster.topics())
    whole = [name.removesuffix(".events") for name in names if name.endswith(".events")]
    return sorted(name for name in whole if f"{name}.snapshots" in names and "." in name)


def offset_ranges(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset of each partition, and the one after its last record (the high watermark).

    Reading up to there waits for open transactions to be committed or aborted.
    """
    wanted = list(partitions)
    first, end = (
        list_offsets(cluster, dict.fromkeys(wanted, which), read_committed=False)
        for which in (EARLIEST, LATEST)
    )
    return {partition: (first[partition], end[partition]) for partition in wanted}


def end_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
    """The offset after the last record of each partition (the high watermark)."""
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=False)


def topic_partitions(topic: str, partitions: int) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(partitions)]


def _new_topics(topics: StoreTopics) -> list[NewTopic]:
    configs = {
        topics.events: {"retention.ms": "-1", "retention.bytes": "-1"},
        topics.commands: {"retention.ms": str(DAY_MS)},
        topics.replies: {"retention.ms": str(7 * DAY_MS)},
        topics.snapshots: {"cleanup.policy": "compact"},
    }
    return [NewTopic(name=name, partitions=topics.partitions, configs=more) for name, more in configs.items()]
