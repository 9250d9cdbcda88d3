"""Partitions of topics: their names, the partition of a key, and requests grouped by topic or leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.bootstrap import Address
    from headrace.client.cluster import Cluster

MASK: Final = 0xFFFFFFFF
MULTIPLIER: Final = 0x5BD1E995
SEED: Final = 0x9747B28C

Item = TypeVar("Item")


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def by_topic(items: Iterable[tuple[TopicPartition, Item]]) -> dict[str, list[tuple[int, Item]]]:
    """Group items by topic, as Kafka's requests do.

    >>> by_topic([(TopicPartition("orders", 0), 12), (TopicPartition("orders", 1), 7)])
    {'orders': [(0, 12), (1, 7)]}
    """
    topics: dict[str, list[tuple[int, Item]]] = {}
    for (topic, partition), item in items:
        topics.setdefault(topic, []).append((partition, item))
    return topics


def by_leader(
    cluster: Cluster, items: Mapping[TopicPartition, Item]
) -> dict[Address, dict[TopicPartition, Item]]:
    """Group items by the leader of their partition."""
    leaders: dict[Address, dict[TopicPartition, Item]] = {}
    for partition, item in items.items():
        leaders.setdefault(cluster.leader_address(partition), {})[partition] = item
    return leaders


def partition_of(key: bytes | None, count: int) -> int:
    """The partition of a key among `count`, as Kafka's Java client chooses it; 0 without a key.

    >>> partition_of(b"abc", 10), partition_of(None, 10)
    (7, 0)
    """
    if count == 1 or key is None:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    whole = len(data) & ~3
    result = SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        result = (result * MULTIPLIER & MASK) ^ word
    if whole < len(data):
        result = (result ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    result = (result ^ result >> 13) * MULTIPLIER & MASK
    return result ^ result >> 15
