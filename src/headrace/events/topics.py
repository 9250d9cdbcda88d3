"""The topics of a store: four for each class of aggregates, partitioned alike, by the aggregate's id.

| topic | holds | kept |
|---|---|---|
| `shop.Cart.events` | what happened, one record for each event | for ever |
| `shop.Cart.commands` | commands from processes that do not handle their partition | a day |
| `shop.Cart.answers` | what became of each command | a week |
| `shop.Cart.snapshots` | the state of aggregates at some version, and how far they reach | the newest |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import Misuse

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster

DAY_MS: Final = 24 * 3_600_000
PARTITIONS: Final = 4
"""Commands are handled by at most as many processes; the number stays as it was at first."""
_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTopics:
    """The names of the topics of one class of aggregates in one store, and their partitions."""

    store: str
    aggregate: str
    partitions: int

    @property
    def events(self) -> str:
        """Where events are."""
        return events_topic(self.store, self.aggregate)

    @property
    def commands(self) -> str:
        """Where commands wait for their handler."""
        return f"{self.store}.{self.aggregate}.commands"

    @property
    def answers(self) -> str:
        """Where answers are."""
        return f"{self.store}.{self.aggregate}.answers"

    @property
    def snapshots(self) -> str:
        """Where snapshots are."""
        return f"{self.store}.{self.aggregate}.snapshots"

    @property
    def group(self) -> str:
        """The consumer group of the handlers."""
        return f"{self.store}.{self.aggregate}.handlers"

    def transactional_id(self, partition: int) -> str:
        """Under which name the handler of a partition writes."""
        return f"headrace.events.{self.store}.{self.aggregate}.{partition}"

    def partition_of(self, key: str) -> int:
        """The partition of an aggregate."""
        return murmur2(key.encode()) % self.partitions


def events_topic(store: str, aggregate: str) -> str:
    """The topic of the events of a class of aggregates."""
    return f"{store}.{aggregate}.events"


def open_topics(cluster: Cluster, store: str, aggregate: str, partitions: int = PARTITIONS) -> StoreTopics:
    """The topics of a class of aggregates, made when they are not there."""
    found = cluster.topics((events_topic(store, aggregate),))
    if found:
        partitions = len(found[events_topic(store, aggregate)].partitions)
    topics = StoreTopics(store=store, aggregate=aggregate, partitions=partitions)
    create_topics(cluster, _new_topics(topics))
    return topics


def find_topics(cluster: Cluster, store: str, aggregate: str) -> StoreTopics:
    """The topics of a class of aggregates that has events already, or an error that names those that have."""
    name = events_topic(store, aggregate)
    found = cluster.topics((name,))
    if not found:
        known = ", ".join(stores(cluster)) or "none"
        raise Misuse(
            f"there are no events of {aggregate} in the store {store!r}: the topic {name} is not there. "
            f"Aggregates that have some: {known}."
        )
    return StoreTopics(store=store, aggregate=aggregate, partitions=len(found[name].partitions))


def stores(cluster: Cluster) -> list[str]:
    """The aggregates that have topics, each as `store.aggregate`."""
    names = set(cluster.topics())
    whole = [name.removesuffix(".events") for name in names if name.endswith(".events")]
    return sorted(name for name in whole if f"{name}.snapshots" in names and "." in name)


def places(topic: str, partitions: int) -> list[TopicPartition]:
    """All partitions of a topic."""
    return [TopicPartition(topic, number) for number in range(partitions)]


def murmur2(key: bytes) -> int:
    """The hash by which the Java client and librdkafka (`murmur2`) place keys, without its sign.

    >>> murmur2(b"21")
    1173551340
    """
    value = (_SEED ^ len(key)) & _WORD
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        value = (value * _FACTOR & _WORD) ^ word
    if len(key) > whole:
        value = (value ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _WORD
    value = (value ^ value >> 13) * _FACTOR & _WORD
    return (value ^ value >> 15) & 0x7FFFFFFF


def _new_topics(topics: StoreTopics) -> list[NewTopic]:
    configs = {
        topics.events: {"retention.ms": "-1", "retention.bytes": "-1"},
        topics.commands: {"retention.ms": str(DAY_MS)},
        topics.answers: {"retention.ms": str(7 * DAY_MS)},
        topics.snapshots: {"cleanup.policy": "compact"},
    }
    return [NewTopic(name=name, partitions=topics.partitions, configs=more) for name, more in configs.items()]
