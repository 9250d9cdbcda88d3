"""Reads and changes topics on a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.output import RequestFailed
from headrace.client.errors import attempts
from headrace.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace.cli.session import BrokerSession

BATCH_LIMIT: Final = "max.message.bytes"
DEFAULT_BATCH_LIMIT_BYTES: Final = 1_048_588
SETTLING_S: Final = 5.0
INTERNAL: Final = ("__", "headrace.")
"""The prefixes of topics that only brokers and Headrace itself write."""
BROKER_DEFAULT: Final = -1
"""The value with which CreateTopics uses the broker's default."""


class TopicNotFound(RequestFailed):
    """The topic does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicListing:
    """One topic in a list."""

    topic: str
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReplicas:
    """The replicas of a partition."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """One setting of a topic."""

    name: str
    value: str | None
    is_default: bool


def is_internal(topic: str) -> bool:
    """Whether users do not write the topic."""
    return topic.startswith(INTERNAL)


def topic_names(session: BrokerSession) -> list[str]:
    """The names of all topics."""
    return sorted(_metadata(session))


def list_topics(session: BrokerSession) -> list[TopicListing]:
    """All topics, sorted by name, including internal ones."""
    found = _metadata(session)
    return [
        TopicListing(
            topic=name,
            partitions=len(found[name].partitions),
            replicas=max((len(place.replicas) for place in found[name].partitions.values()), default=0),
        )
        for name in sorted(found)
    ]


def find_partitions(session: BrokerSession, topic: str) -> list[PartitionReplicas]:
    """The partitions of a topic. Raises `TopicNotFound` if it does not exist, and does not create it."""
    # Lists all topics: requesting one by name might create it.
    found = _metadata(session)
    if topic not in found:
        raise TopicNotFound(
            f"topic {topic!r} does not exist.{did_you_mean(topic, found)}\n"
            f"`headrace topic list` shows what there is; `headrace topic create {topic}` makes it."
        )
    return [_place(found[topic].partitions[number]) for number in sorted(found[topic].partitions)]


def choose_partitions(session: BrokerSession, topic: str, numbers: Collection[int]) -> list[int]:
    """The partitions in `numbers`, or all partitions of the topic if it is empty."""
    known = [place.partition for place in find_partitions(session, topic)]
    for number in numbers:
        if number not in known:
            raise RequestFailed(
                f"topic {topic!r} has no partition {number}: its partitions are 0 to {len(known) - 1}.\n"
                "Choose one of those, or leave out --partition for all of them."
            )
    return sorted(numbers) or known


def read_configs(session: BrokerSession, topic: str) -> list[TopicSetting]:
    """All settings of a topic, by name."""
    from headrace.cli.librdkafka import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = session.request_one("describe_configs", resource, f"describe the settings of topic {topic!r}")
    return [
        TopicSetting(name=name, value=entries[name].value, is_default=not _is_set_on_topic(entries[name]))
        for name in sorted(entries)
    ]


def read_batch_limit(session: BrokerSession, topic: str) -> int:
    """The maximum size of a batch in this topic, in bytes."""
    try:
        configs = {config.name: config.value for config in read_configs(session, topic)}
    except RequestFailed:  # a producer may not be allowed to read settings
        configs = {}
    return int(configs.get(BATCH_LIMIT) or DEFAULT_BATCH_LIMIT_BYTES)


def create_topic(
    session: BrokerSession,
    topic: str,
    *,
    partitions: int | None,
    replicas: int | None,
    configs: Mapping[str, str],
) -> None:
    """Create a topic; the broker's defaults apply to what is not given."""
    from headrace.cli.librdkafka import NewTopic

    new = NewTopic(
        topic,
        num_partitions=partitions or BROKER_DEFAULT,
        replication_factor=replicas or BROKER_DEFAULT,
        config=dict(configs),
    )
    session.request_one("create_topics", new, f"create topic {topic!r}")
    _await_leaders(session, topic)


def add_partitions(session: BrokerSession, topic: str, total: int) -> None:
    """Increase the number of partitions to `total`."""
    from headrace.cli.librdkafka import NewPartitions

    new = NewPartitions(topic, total)
    session.request_one("create_partitions", new, f"raise topic {topic!r} to {total} partitions")


def alter_configs(
    session: BrokerSession, topic: str, *, put: Mapping[str, str], unset: Sequence[str]
) -> None:
    """Set and unset settings of a topic, all or none of them."""
    from headrace.cli.librdkafka import AlterConfigOpType, ConfigEntry, ConfigResource

    changes = [
        *(
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in put.items()
        ),
        *(ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset),
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    session.request_one("incremental_alter_configs", resource, f"alter the settings of topic {topic!r}")


def delete_topic(session: BrokerSession, topic: str) -> None:
    """Delete a topic and all its records."""
    session.request_one("delete_topics", topic, f"delete topic {topic!r}")


def _metadata(session: BrokerSession) -> dict[str, Any]:
    def call() -> dict[str, Any]:
        return dict(session.admin.list_topics(timeout=session.timeout_s).topics)

    return session.request(call, "list its topics")


def _await_leaders(session: BrokerSession, topic: str) -> None:
    """Wait until the new topic has leaders: a cluster reports it as created before."""
    for _ in attempts(SETTLING_S):
        found = _metadata(session).get(topic)
        if found is not None and all(place.leader >= 0 for place in found.partitions.values()):
            return


def _place(partition: Any) -> PartitionReplicas:
    return PartitionReplicas(
        partition=partition.id,
        leader=None if partition.leader < 0 else partition.leader,
        replicas=tuple(partition.replicas),
        in_sync=tuple(partition.isrs),
    )


def _is_set_on_topic(entry: Any) -> bool:
    from headrace.cli.librdkafka import ConfigSource

    return bool(entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
