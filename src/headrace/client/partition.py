"""What readers, writers and groups all speak about: one partition of one topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicPartition(NamedTuple):
    """A partition by the name of its topic and its number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


Item = TypeVar("Item")


def by_topic(items: Iterable[tuple[TopicPartition, Item]]) -> dict[str, list[tuple[int, Item]]]:
    """The items under the names of their topics, as Kafka's requests group them.

    >>> by_topic([(TopicPartition("orders", 0), 12), (TopicPartition("orders", 1), 7)])
    {'orders': [(0, 12), (1, 7)]}
    """
    topics: dict[str, list[tuple[int, Item]]] = {}
    for (topic, partition), item in items:
        topics.setdefault(topic, []).append((partition, item))
    return topics
