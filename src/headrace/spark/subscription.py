"""Which partitions a source reads: named topics, topics that match a pattern, or partitions one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption, UnknownTopic
from headrace.spark.positions import read_partitions

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.spark.options import Options

WAYS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What was subscribed to: exactly one of topics, a pattern, and partitions."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, options: Options) -> Self:
        """The subscription that the options describe."""
        given = [way for way in WAYS if (options.text(way) or "").strip()]
        if len(given) != 1:
            seen = " and ".join(given) if given else "none"
            raise BadOption(f"say what to read by exactly one of {', '.join(WAYS)}; here it was {seen}")
        way, text = given[0], options.required(given[0], "name a topic")
        if way == "subscribe":
            return cls(topics=_names(text))
        if way == "subscribePattern":
            return cls(pattern=_pattern(text))
        return cls(assigned=read_partitions(way, text))

    def partitions(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        A topic that matches the pattern is among them as soon as it exists.
        """
        if self.pattern:
            matches = re.compile(self.pattern).fullmatch
            found = [
                topic for topic in cluster.topics().values() if not topic.internal and matches(topic.name)
            ]
        else:
            names = self.topics or sorted({partition.topic for partition in self.assigned})
            found = list(cluster.topics(names).values())
        existing = {
            TopicPartition(topic.name, number): topic.topic_id
            for topic in found
            for number in topic.partitions
        }
        if not self.assigned:
            return existing
        return {partition: existing[partition] for partition in self.assigned if partition in existing}

    def covers(self, partition: TopicPartition) -> bool:
        """Whether `partition` would be read, did it exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition in self.assigned or partition.topic in self.topics

    def existing(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        `UnknownTopic` where something was named that does not exist.
        """
        partitions = self.partitions(cluster)
        topics = {partition.topic for partition in partitions}
        missing = [repr(topic) for topic in self.topics if topic not in topics]
        missing += [str(partition) for partition in self.assigned if partition not in partitions]
        if missing:
            raise UnknownTopic(
                f"the cluster has no {', '.join(missing)}: check the name, or create the topic first. "
                "A topic that comes later is found by subscribePattern."
            )
        return partitions


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise BadOption(f"subscribe is {text!r}: write topic names with commas between")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise BadOption(
            f"subscribePattern is {text!r}, which is not a regular expression: {fault}"
        ) from fault
    return text
