"""What a behavior may ask of a Kafka client, the same for every library.

An adapter turns one library into a `Client`. All calls are synchronous: they return when the broker has
answered, or raise `Refused` with Kafka's error code. What a library cannot do stands in its adapter's
`CANNOT`, capability by capability, with the reason; behaviors that need it are then not generated for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

Headers = tuple[tuple[str, bytes | None], ...]
Isolation = Literal["read_uncommitted", "read_committed"]
OffsetAt = Literal["earliest", "latest", "max_timestamp"] | int

PATIENCE_S = 20.0
"""How long an adapter waits for one answer before it gives up."""


class Refused(Exception):
    """The broker, or the library on its behalf, refused a request."""

    def __init__(self, error: ErrorCode, detail: str) -> None:
        super().__init__(f"{error.name}: {detail}")
        self.error = error


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a producer sends; a partition or a timestamp that is None is the library's choice."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Where the broker put a message."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a consumer got."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer sends."""

    acks: Literal["0", "1", "all"] = "all"
    compression: str = "none"
    idempotent: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    linger_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer reads; commits are always by hand."""

    group: str | None = None
    reset: Literal["earliest", "latest", "none"] = "earliest"
    isolation: Isolation = "read_uncommitted"
    assignor: str = "range"
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    fetch_min_bytes: int = 1
    partition_max_bytes: int = 1_048_576
    fetch_wait_ms: int = 100


PRODUCER_DEFAULTS = ProducerOptions()
CONSUMER_DEFAULTS = ConsumerOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One setting of a topic, as described by the broker."""

    value: str | None
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One member of a group, with what it was assigned."""

    instance_id: str | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, as described by its coordinator; `state` in lower case without separators."""

    state: str
    members: tuple[Member, ...]


class Producer(Protocol):
    """A producer; one with a transactional id has called initTransactions when it is handed out."""

    def send(self, topic: str, messages: Sequence[Message]) -> list[Sent]:
        """Send all messages, and return where each one went when all are acknowledged."""
        ...

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def send_offsets(self, consumer: "Consumer", offsets: Mapping[TopicPartition, int]) -> None:
        """Make the consumer group's offsets part of the transaction."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def abort(self) -> None:
        """Abort the transaction."""
        ...

    def close(self) -> None:
        """Close the producer; a second call does nothing."""
        ...


class Consumer(Protocol):
    """A consumer, by assignment or by subscription in a group."""

    assignments: int
    """How often the group has given this consumer an assignment."""

    def assign(self, *partitions: TopicPartition) -> None:
        """Read these partitions, from the committed offset or where the reset policy says."""
        ...

    def subscribe(self, *topics: str) -> None:
        """Join the group, and read what it assigns."""
        ...

    def poll(self, timeout_s: float) -> list[Received]:
        """What has arrived, after at most that time; also where group work is done."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading at this offset."""
        ...

    def position(self, partition: TopicPartition) -> int:
        """The offset that will be read next."""
        ...

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets for the group."""
        ...

    def committed(self, partition: TopicPartition) -> int | None:
        """The group's committed offset, or None."""
        ...

    def close(self) -> None:
        """Leave the group (unless a static member) and close; a second call does nothing."""
        ...


class Client(Protocol):
    """One library, connected to one broker."""

    CANNOT: ClassVar[Mapping[str, str]]
    """What the library lacks: capability to reason."""

    def producer(self, options: ProducerOptions = ...) -> Producer:
        """A new producer, closed with this client at the latest."""
        ...

    def consumer(self, options: ConsumerOptions = ...) -> Consumer:
        """A new consumer, closed with this client at the latest."""
        ...

    def topics(self) -> set[str]:
        """The names of all topics."""
        ...

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; zero while it is unknown."""
        ...

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None, replicas: int = 1
    ) -> None:
        """Create a topic."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        ...

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions to a total."""
        ...

    def configs(self, topic: str) -> dict[str, Config]:
        """All settings of a topic."""
        ...

    def alter_configs(self, topic: str, changes: Mapping[str, str | None]) -> None:
        """Set these settings, or back to default where None, and leave the others (incremental)."""
        ...

    def replace_configs(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set these settings, and all others back to default (not incremental)."""
        ...

    def delete_records(self, partition: TopicPartition, before: int) -> int:
        """Delete the records before an offset, and return the new log start."""
        ...

    def offset(self, partition: TopicPartition, at: OffsetAt, isolation: Isolation = ...) -> int:
        """The offset at the start, the end, the largest timestamp, or the first since a time; else -1."""
        ...

    def groups(self) -> set[str]:
        """The names of all groups."""
        ...

    def group(self, group: str) -> Group:
        """A description of one group."""
        ...

    def delete_group(self, group: str) -> None:
        """Delete an empty group with its offsets."""
        ...

    def delete_offsets(self, group: str, partition: TopicPartition) -> None:
        """Delete a group's committed offset of one partition."""
        ...

    def close(self) -> None:
        """Close everything that was opened through this client."""
        ...
