"""The topics: by name and by id, with their partitions and settings, kept in an internal topic of their own.

A topic is there once its record is, and gone once a tombstone is: a crash before or after leaves either the
whole topic or none of it. Folders are made before the record and removed after the tombstone; those that a
crash has left are removed when a topic of that name is made.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from headrace.broker.partition import Partition
from headrace.broker.state_log import StateRecord
from headrace.errors import HeadraceError
from headrace.protocol.steps import run_steps
from headrace.storage.config import TopicConfig
from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from headrace.broker.clock import Clock
    from headrace.broker.state_log import StateLog
    from headrace.storage.folder import DataFolder

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
TOPICS: Final = "__headrace_topics"
SHARES: Final = "__share_group_state"
INTERNAL: Final = frozenset({OFFSETS, TRANSACTIONS, TOPICS, SHARES})

STATE_CONFIG: Final = TopicConfig.parse(
    {"cleanup.policy": "compact", "segment.bytes": str(16 * 2**20), "max.message.bytes": str(16 * 2**20)}
)
"""How the broker's own topics are kept."""

MAX_PARTITIONS: Final = 10_000
"""The default limit of the partitions of all topics."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicError(HeadraceError):
    """A topic that cannot be made or changed as asked."""


class InvalidTopicName(TopicError):
    """A name that no topic may have."""


class TopicExists(TopicError):
    """A topic of that name is there already."""


class UnknownTopic(TopicError):
    """No topic of that name is there."""


class InvalidPartitions(TopicError):
    """A number of partitions that a topic cannot have."""


@dataclass(slots=True, kw_only=True)
class Topic:
    """One topic."""

    name: str
    id: UUID
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is the broker's own."""
        return self.name in INTERNAL

    def partition(self, index: int) -> Partition | None:
        """The partition of that number, if there is one."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def check_name(name: str) -> None:
    """Pass when a topic may have this name: it becomes the name of a folder."""
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"{name[:80]!r} is no topic name: use up to 249 letters, digits, '.', '_' and '-', not only dots"
        )


def _plain(name: str) -> str:
    """The name as the names of Kafka's metrics show it."""
    return name.replace(".", "_")


class Topics:
    """All topics of the broker."""

    def __init__(self, folder: DataFolder, clock: Clock, max_partitions: int = MAX_PARTITIONS) -> None:
        self._folder = folder
        self._clock = clock
        self._max_partitions = max_partitions
        self._partition_count = 0
        self._changing: set[str] = set()
        """Names of topics that are being made, enlarged or deleted, which takes several turns of the loop."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_plain_name: dict[str, str] = {}
        self._state: StateLog | None = None
        self._changed: Callable[[Topic], None] = lambda _topic: None

    def follow(self, changed: Callable[[Topic], None]) -> None:
        """Have `changed` called with each topic that is made, altered or deleted from now on."""
        self._changed = changed

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def open_internal(self, name: str) -> Partition:
        """The one partition of an internal topic, made when it is missing."""
        # The id must not change between starts, and the name of an internal topic never does.
        topic = Topic(name=name, id=UUID(bytes=name.encode().rjust(16, b"_")[-16:]), config=STATE_CONFIG)
        self._open_partitions(topic, 1)
        return topic.partitions[0]

    def load(self, state: StateLog) -> None:
        """Open every topic that the state log knows."""
        self._state = state
        latest = {entry.key: entry.value for entry in state.replay() if isinstance(entry, StateRecord)}
        for key, value in latest.items():
            if value is not None:
                stored = json.loads(value)
                topic = Topic(
                    name=key.decode(), id=UUID(stored["id"]), config=TopicConfig.parse(stored["configs"])
                )
                self._open_partitions(topic, stored["partitions"])

    def get(self, name: str) -> Topic | None:
        """The topic of that name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic with that id."""
        return self._by_id.get(topic_id)

    def find(self, topic: str | UUID) -> Topic | None:
        """The topic, by name or by id."""
        return self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicConfig:
        """The settings of a topic that could be made now, or the reason why it cannot."""
        check_name(name)
        if name in self._by_name or name in self._changing:
            raise TopicExists(f"topic {name!r} exists already, or is being created or deleted")
        twin = self._by_plain_name.get(_plain(name))
        if twin is not None:
            raise InvalidTopicName(
                f"topic {name!r} and topic {twin!r} differ only in '.' and '_', which the names of Kafka's "
                "metrics do not tell apart: choose another name"
            )
        if partitions < 1:
            raise InvalidPartitions(f"{partitions} partitions: a topic has at least 1")
        self._check_count(partitions)
        config = TopicConfig.parse(configs)
        self._check_memory(config, partitions)
        return config

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Make a topic."""
        return run_steps(self.create_steps(name, partitions, configs))

    def create_steps(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> Generator[None, None, Topic]:
        """Make a topic; yields between two partitions, for there may be thousands."""
        topic = Topic(name=name, id=uuid4(), config=self.check_new(name, partitions, configs))
        yield from self._make_partitions(topic, partitions)
        self._register(topic)
        self._changed(topic)
        return topic

    def check_growth(self, name: str, partitions: int) -> Topic:
        """The topic that could have so many partitions, or the reason why it cannot."""
        topic = self._existing(name)
        if name in self._changing:
            raise InvalidPartitions(f"topic {name!r} is being enlarged already")
        if partitions <= len(topic.partitions):
            raise InvalidPartitions(
                f"topic {name!r} has {len(topic.partitions)} partitions and cannot have {partitions}: "
                "partitions can be added and not taken away"
            )
        self._check_count(partitions - len(topic.partitions))
        self._check_memory(topic.config, partitions - len(topic.partitions))
        return topic

    def add_partitions(self, name: str, partitions: int) -> None:
        """Let a topic have `partitions` partitions in all."""
        run_steps(self.growth_steps(name, partitions))

    def growth_steps(self, name: str, partitions: int) -> Generator[None, None, None]:
        """Let a topic have `partitions` partitions in all; yields between two of them."""
        topic = self.check_growth(name, partitions)
        yield from self._make_partitions(topic, partitions)
        self._changed(topic)

    def configure(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic."""
        topic, config = self._existing(name), self.check_configs(name, configs)
        self._record(topic, config, len(topic.partitions))
        topic.config = config
        for partition in topic.partitions:
            partition.log.config = config
        self._changed(topic)

    def check_configs(self, name: str, configs: Mapping[str, str]) -> TopicConfig:
        """The settings that a topic could have instead of its own, or the reason why it cannot."""
        topic, config = self._existing(name), TopicConfig.parse(configs)
        if config.headrace_storage != topic.config.headrace_storage:
            raise InvalidConfig(
                f"headrace.storage of topic {name!r} stays {topic.config.headrace_storage}: where records "
                "are kept is chosen when a topic is made; make another topic and copy them"
            )
        more_bytes = config.retention_bytes - topic.config.retention_bytes
        if config.is_in_memory and more_bytes > 0:
            self._folder.memory.check_room(more_bytes * len(topic.partitions))
        return config

    def delete(self, name: str) -> Topic:
        """Remove a topic and its records; those who wait for it are told."""
        return run_steps(self.delete_steps(name))

    def delete_steps(self, name: str, forget: Iterable[None] = ()) -> Generator[None, None, Topic]:
        """Remove a topic, which clients no longer find from the first step on; yields where that takes long.

        The steps of `forget` come first: if one of them fails, the topic stays. A topic of the same name
        cannot be made before all is done.
        """
        topic = self._existing(name)
        if name in self._changing:
            raise InvalidPartitions(f"topic {name!r} is being enlarged: delete it later")
        self._changing.add(name)
        try:
            yield from self._unregister_steps(topic, forget)
            for partition in topic.partitions:
                self._folder.delete(name, partition.index)
                partition.notify()
                yield
        finally:
            self._changing.discard(name)
        self._changed(topic)
        return topic

    def _unregister_steps(self, topic: Topic, forget: Iterable[None]) -> Generator[None, None, None]:
        assert self._state is not None
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        try:
            yield from forget
            self._state.append([(topic.name.encode(), None)])
        except BaseException:
            self._register(topic)
            raise
        self._by_plain_name.pop(_plain(topic.name), None)
        self._partition_count -= len(topic.partitions)

    def wake_readers(self) -> None:
        """Have everybody who waits for records look again."""
        for topic in self._by_name.values():
            for partition in topic.partitions:
                partition.notify()

    def _check_count(self, more: int) -> None:
        if self._partition_count + more > self._max_partitions:
            raise InvalidPartitions(
                f"{more} more partitions: the broker has {self._partition_count} and serves "
                f"{self._max_partitions}; delete topics, or start it with a larger --max-partitions"
            )

    def _check_memory(self, config: TopicConfig, partitions: int) -> None:
        if config.is_in_memory:
            self._folder.memory.check_room(config.retention_bytes * partitions)

    def _existing(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}")
        return topic

    def _record(self, topic: Topic, config: TopicConfig, partitions: int) -> None:
        assert self._state is not None
        stored = {"id": str(topic.id), "partitions": partitions, "configs": dict(config.overrides)}
        self._state.append([(topic.name.encode(), json.dumps(stored).encode())])

    def _make_partitions(self, topic: Topic, count: int) -> Generator[None, None, None]:
        """Let the topic have `count` partitions, the new ones empty; all of them or, when it fails, none."""
        made: list[Partition] = []
        more = count - len(topic.partitions)
        self._changing.add(topic.name)
        self._partition_count += more
        try:
            for index in range(len(topic.partitions), count):
                self._folder.discard(topic.name, index)
                made.append(self._open(topic, index))
                yield
            self._record(topic, topic.config, count)
        except BaseException:
            self._partition_count -= more
            for partition in made:
                self._folder.delete(topic.name, partition.index)
            raise
        finally:
            self._changing.discard(topic.name)
        topic.partitions += made

    def _open_partitions(self, topic: Topic, count: int) -> None:
        topic.partitions += [self._open(topic, index) for index in range(count)]
        if not topic.is_internal:
            self._partition_count += count
        self._register(topic)

    def _open(self, topic: Topic, index: int) -> Partition:
        log = self._folder.open(topic.name, index, topic.config, self._clock.now_ms())
        return Partition(topic.name, index, log)

    def _register(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic
        self._by_plain_name[_plain(topic.name)] = topic.name
