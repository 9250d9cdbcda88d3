"""Topics and partitions, by name and by id; their metadata is stored in an internal topic.

A topic exists as soon as its record is in the log, and until its tombstone is, so that a crash leaves either
the complete topic or none of it. Folders are created before the record and deleted after the tombstone;
folders that a crash left behind are deleted when a topic with that name is created.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from headrace.broker.state_log import StateRecord
from headrace.errors import HeadraceError
from headrace.protocol.wire import run_steps
from headrace.storage.config import TopicConfig
from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from headrace.broker.clock import BrokerClock
    from headrace.broker.overflow.limiter import BacklogLimiter
    from headrace.broker.state_log import StateLog
    from headrace.storage.folder import DataFolder
    from headrace.storage.log import Log

OFFSETS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
TOPICS: Final = "__headrace_topics"
SHARES: Final = "__share_group_state"
SECURITY: Final = "__headrace_security"
"""Users and their rights, which no client can see."""
INTERNAL: Final = frozenset({OFFSETS, TRANSACTIONS, TOPICS, SHARES})

STATE_CONFIG: Final = TopicConfig.parse(
    {"cleanup.policy": "compact", "segment.bytes": str(16 * 2**20), "max.message.bytes": str(16 * 2**20)}
)
"""The settings of internal topics."""

MAX_PARTITIONS: Final = 10_000
"""The default limit for the partitions of all topics."""
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicError(HeadraceError):
    """A topic that cannot be created or changed."""


class InvalidTopicName(TopicError):
    """A name that is not allowed for topics."""


class TopicExists(TopicError):
    """A topic with this name exists."""


class UnknownTopic(TopicError):
    """The topic does not exist."""


class InvalidPartitions(TopicError):
    """An invalid number of partitions."""


class Partition:
    """One partition of a topic: its log, and the callbacks that wait for new records."""

    __slots__ = ("index", "limiter", "log", "topic", "waiters")

    def __init__(self, topic: str, index: int, log: Log) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.waiters: set[Callable[[], None]] = set()
        """Called whenever there is more to read."""
        self.limiter: BacklogLimiter | None = None
        """Enforces the topic's `headrace.overflow` settings; None for a topic without a limit."""

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there is more to read."""
        self.waiters.add(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        """Remove a callback."""
        self.waiters.discard(wake)

    def notify(self) -> None:
        """Call all waiting callbacks: there is more to read."""
        for wake in tuple(self.waiters):
            wake()


@dataclass(slots=True, kw_only=True)
class Topic:
    """A topic with its settings and partitions."""

    name: str
    id: UUID
    config: TopicConfig
    partitions: list[Partition] = field(default_factory=list)

    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal."""
        return self.name in INTERNAL

    def partition(self, index: int) -> Partition | None:
        """The partition with that index, or None."""
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


def check_name(name: str) -> None:
    """Raise `InvalidTopicName` unless a topic may have this name, which is also the name of a folder."""
    if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicName(
            f"{name[:80]!r} is not a topic name: use up to 249 letters, digits, '.', '_' and '-', "
            "and not '.' or '..'"
        )


def _metric_name(name: str) -> str:
    """The name in Kafka's metrics, which do not distinguish `.` and `_`."""
    return name.replace(".", "_")


class Topics:
    """All topics of the broker."""

    def __init__(
        self,
        folder: DataFolder,
        clock: BrokerClock,
        max_partitions: int = MAX_PARTITIONS,
        *,
        has_archive: bool = False,
    ) -> None:
        self._has_archive = has_archive
        self._folder = folder
        self._clock = clock
        self._max_partitions = max_partitions
        self._partition_count = 0
        self._changing: set[str] = set()
        """Names of topics that are being created, extended or deleted, which takes several steps."""
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._by_metric_name: dict[str, str] = {}
        self.hidden: list[Partition] = []
        """The partitions of topics that exist for the broker alone."""
        self._state: StateLog | None = None
        self._on_change: Callable[[Topic], None] = lambda _topic: None

    def on_change(self, callback: Callable[[Topic], None]) -> None:
        """Call `callback` with each topic that is created, altered or deleted."""
        self._on_change = callback

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._by_name.values()))

    def open_internal(self, name: str) -> Partition:
        """The only partition of an internal topic; a missing topic is created."""
        # The id must be the same after a restart, so it is derived from the name.
        topic = Topic(name=name, id=UUID(bytes=name.encode().rjust(16, b"_")[-16:]), config=STATE_CONFIG)
        self._open_partitions(topic, 1)
        return topic.partitions[0]

    def open_hidden(self, name: str) -> Partition:
        """The one partition of a topic that no client can see, read or write."""
        partition = Partition(name, 0, self._folder.open(name, 0, STATE_CONFIG, self._clock.now_ms()))
        self.hidden.append(partition)
        return partition

    def load(self, state: StateLog) -> None:
        """Open all topics of the state log."""
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
        """The topic with that name."""
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        """The topic with that id."""
        return self._by_id.get(topic_id)

    def find(self, topic: str | UUID) -> Topic | None:
        """The topic with that name or id."""
        return self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def check_new(self, name: str, partitions: int, configs: Mapping[str, str]) -> TopicConfig:
        """The settings of a new topic; raises `TopicError` or `InvalidConfig` if it cannot be created."""
        check_name(name)
        if name in self._by_name or name in self._changing:
            raise TopicExists(f"topic {name!r} already exists, or is being created or deleted")
        if _metric_name(name) == SECURITY:
            raise InvalidTopicName(f"{name!r} is reserved for the broker: choose another name")
        collision = self._by_metric_name.get(_metric_name(name))
        if collision is not None:
            raise InvalidTopicName(
                f"topic {name!r} and topic {collision!r} differ only in '.' and '_', which Kafka's "
                "metrics do not distinguish: choose another name"
            )
        if partitions < 1:
            raise InvalidPartitions(f"{partitions} is not a number of partitions: a topic has at least 1")
        self._check_count(partitions)
        config = TopicConfig.parse(configs)
        self._check_memory(config, partitions)
        self._check_archive(config)
        return config

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic."""
        return run_steps(self.create_steps(name, partitions, configs))

    def create_steps(
        self, name: str, partitions: int, configs: Mapping[str, str]
    ) -> Generator[None, None, Topic]:
        """Create a topic; yields between partitions, since there may be thousands."""
        topic = Topic(name=name, id=uuid4(), config=self.check_new(name, partitions, configs))
        yield from self._create_partitions(topic, partitions)
        self._register(topic)
        self._on_change(topic)
        return topic

    def check_add_partitions(self, name: str, partitions: int) -> Topic:
        """The topic; raises `InvalidPartitions` if it cannot have that many partitions."""
        topic = self._require(name)
        if name in self._changing:
            raise InvalidPartitions(f"partitions are being added to topic {name!r}: retry later")
        if partitions <= len(topic.partitions):
            raise InvalidPartitions(
                f"topic {name!r} has {len(topic.partitions)} partitions and cannot have {partitions}: "
                "partitions can only be added"
            )
        self._check_count(partitions - len(topic.partitions))
        self._check_memory(topic.config, partitions - len(topic.partitions))
        return topic

    def add_partitions(self, name: str, partitions: int) -> None:
        """Extend a topic to `partitions` partitions in total."""
        run_steps(self.add_partitions_steps(name, partitions))

    def add_partitions_steps(self, name: str, partitions: int) -> Generator[None, None, None]:
        """Extend a topic to `partitions` partitions in total; yields between partitions."""
        topic = self.check_add_partitions(name, partitions)
        yield from self._create_partitions(topic, partitions)
        self._on_change(topic)

    def configure(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a topic."""
        topic, config = self._require(name), self.check_configs(name, configs)
        self._record(topic, config, len(topic.partitions))
        topic.config = config
        for partition in topic.partitions:
            partition.log.config = config
        self._on_change(topic)

    def check_configs(self, name: str, configs: Mapping[str, str]) -> TopicConfig:
        """The new settings of a topic; raises `InvalidConfig` if it cannot have them."""
        topic, config = self._require(name), TopicConfig.parse(configs)
        if config.headrace_storage != topic.config.headrace_storage:
            raise InvalidConfig(
                f"headrace.storage of topic {name!r} is {topic.config.headrace_storage} and cannot be "
                "changed: create another topic and copy the records"
            )
        self._check_archive(config)
        if topic.config.is_tiered and not config.is_tiered and not config.remote_log_delete_on_disable:
            raise InvalidConfig(
                f"remote.storage.enable=false would lose the archived records of topic {name!r}: set "
                "remote.log.delete.on.disable=true to delete them, or remote.log.copy.disable=true to keep "
                "them and archive no more"
            )
        more_bytes = config.retention_bytes - topic.config.retention_bytes
        if config.is_in_memory and more_bytes > 0:
            self._folder.memory.check_room(more_bytes * len(topic.partitions))
        return config

    def delete(self, name: str) -> Topic:
        """Delete a topic with its records, and notify the waiting fetches."""
        return run_steps(self.delete_steps(name))

    def delete_steps(self, name: str, before: Iterable[None] = ()) -> Generator[None, None, Topic]:
        """Delete a topic; yields between steps. Clients do not find it any more from the first step.

        The steps of `before` run first: if one fails, the topic is restored. A topic with the same name
        cannot be created before all steps are complete.
        """
        topic = self._require(name)
        if name in self._changing:
            raise InvalidPartitions(f"partitions are being added to topic {name!r}: delete it later")
        self._changing.add(name)
        try:
            yield from self._unregister_steps(topic, before)
            for partition in topic.partitions:
                if topic.config.is_tiered:
                    self._folder.forget_archived(topic.id, partition.index)
                self._folder.delete(name, partition.index)
                partition.notify()
                yield
        finally:
            self._changing.discard(name)
        self._on_change(topic)
        return topic

    def _unregister_steps(self, topic: Topic, before: Iterable[None]) -> Generator[None, None, None]:
        assert self._state is not None
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        try:
            yield from before
            self._state.append([(topic.name.encode(), None)])
        except BaseException:
            self._register(topic)
            raise
        self._by_metric_name.pop(_metric_name(topic.name), None)
        self._partition_count -= len(topic.partitions)

    def wake_readers(self) -> None:
        """Notify all waiting fetches."""
        for topic in self._by_name.values():
            for partition in topic.partitions:
                partition.notify()

    def _check_count(self, more: int) -> None:
        if self._partition_count + more > self._max_partitions:
            raise InvalidPartitions(
                f"cannot add {more} partitions: the broker has {self._partition_count} of at most "
                f"{self._max_partitions}; delete topics, or restart it with a larger --max-partitions"
            )

    def _check_memory(self, config: TopicConfig, partitions: int) -> None:
        if config.is_in_memory:
            self._folder.memory.check_room(config.retention_bytes * partitions)

    def _check_archive(self, config: TopicConfig) -> None:
        if config.is_tiered and not self._has_archive:
            raise InvalidConfig(
                "remote.storage.enable=true needs an archive: start the broker with "
                "--archive s3://BUCKET/PREFIX or file:///FOLDER"
            )

    def _require(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist")
        return topic

    def _record(self, topic: Topic, config: TopicConfig, partitions: int) -> None:
        assert self._state is not None
        stored = {"id": str(topic.id), "partitions": partitions, "configs": dict(config.overrides)}
        self._state.append([(topic.name.encode(), json.dumps(stored).encode())])

    def _create_partitions(self, topic: Topic, count: int) -> Generator[None, None, None]:
        """Extend the topic to `count` partitions; on an error none is added."""
        created: list[Partition] = []
        more = count - len(topic.partitions)
        self._changing.add(topic.name)
        self._partition_count += more
        try:
            for index in range(len(topic.partitions), count):
                self._folder.discard(topic.name, index)
                created.append(self._open(topic, index))
                yield
            self._record(topic, topic.config, count)
        except BaseException:
            self._partition_count -= more
            for partition in created:
                self._folder.delete(topic.name, partition.index)
            raise
        finally:
            self._changing.discard(topic.name)
        topic.partitions += created

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
        self._by_metric_name[_metric_name(topic.name)] = topic.name
