"""The offsets of captures: records in a compacted topic, written in the transaction that they describe."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.capture.settings import slot_name
from headrace.capture.source import CaptureError
from headrace.client.bootstrap import SILENT, client_config
from headrace.client.errors import BrokerUnreachable
from headrace.client.topics import NewTopic, create_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.client.cluster import Cluster

TOPIC: Final = "headrace.captures"
STOP: Final = "/stop"
"""The suffix of a capture's name in the key of a stop request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSnapshot:
    """A completed snapshot of a table."""

    topic: str
    position: int
    """The position of the snapshot: it contains every transaction that committed before."""
    key: tuple[str, ...]
    """The key columns of the table's records; empty if the records have no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOffset:
    """The position in the database's log up to which a capture has committed its records."""

    name: str
    address: str
    """The database without its password, for display. No command connects to it: anyone who can write the
    topic could redirect an operator's password to another server."""
    system: str
    """The system identifier and the name of the database, which a copy at the same address does not have."""
    position: int
    """The end LSN of the last committed transaction; 0 before the slot exists."""
    time_ms: int = 0
    """The highest timestamp of a record so far; timestamps never decrease."""
    tables: Mapping[str, CompletedSnapshot] = field(default_factory=dict)

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_name(self.name)

    def with_table(self, name: str, table: CompletedSnapshot) -> Self:
        """A copy with one more completed snapshot."""
        return replace(self, tables={**self.tables, name: table})

    def to_bytes(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Decode a record's value."""
        try:
            document: dict[str, Any] = json.loads(value)
            tables = {
                name: CompletedSnapshot(**{**table, "key": tuple(table["key"])})
                for name, table in document.pop("tables").items()
            }
            return cls(**document, tables=tables)
        except (ValueError, TypeError, KeyError) as fault:
            raise CaptureError(
                f"a record in {TOPIC!r} is not the offset of a capture ({fault}). Delete the record, or "
                "drop the capture."
            ) from fault


def create_offsets_topic(cluster: Cluster) -> None:
    """Create the topic of offsets if it does not exist."""
    create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs={"cleanup.policy": "compact"})])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCaptures:
    """The contents of the topic of offsets."""

    captures: Mapping[str, CaptureOffset]
    stopped: frozenset[str]
    """The names of captures with a stop request."""


def read_offsets(bootstrap: str) -> KnownCaptures:
    """Read the offset of every capture of this broker."""
    newest = read_latest_records(bootstrap, TOPIC)
    names = {key.decode(): value for key, value in newest.items()}
    return KnownCaptures(
        captures={
            name: replace(CaptureOffset.from_bytes(value), name=name)
            for name, value in names.items()
            if not name.endswith(STOP)
        },
        stopped=frozenset(name.removesuffix(STOP) for name in names if name.endswith(STOP)),
    )


READ_TIMEOUT_S: Final = 30.0
PARTITION_EOF: Final = -191
"""librdkafka's code for the end of a partition."""
UNKNOWN_TOPIC: Final = (3, -190, -188)
"""Kafka's and librdkafka's errors for a topic that does not exist."""


def read_records(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of all committed records that have a key; none if the topic does not exist."""
    return _read_partitions(bootstrap, topic, "read_committed", None, {})


def read_latest_records(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """The latest committed value of each key, without deleted keys; empty if the topic does not exist."""
    newest: dict[bytes, bytes] = {}
    for key, value in read_records(bootstrap, topic):
        if value is None:
            newest.pop(key, None)
        else:
            newest[key] = value
    return newest


def live_keys(bootstrap: str, topic: str) -> set[bytes]:
    """The keys whose latest record has a value, including records of the caller's open transaction.

    Only for a topic with a single writer: everything after the last stable offset counts as the caller's.
    """
    live: set[bytes] = set()
    stable: dict[int, int] = {}
    committed = _read_partitions(bootstrap, topic, "read_committed", None, stable)
    # A generator: it starts after the first one has ended, at the last stable offset.
    opened = _read_partitions(bootstrap, topic, "read_uncommitted", stable, {})
    for key, value in itertools.chain(committed, opened):
        if value is None:
            live.discard(key)
        else:
            live.add(key)
    return live


def _read_partitions(
    bootstrap: str, topic: str, isolation: str, starts: dict[int, int] | None, ends: dict[int, int]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield keys and values of all records from `starts` on; stores the end of each partition in `ends`."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(_config(bootstrap, isolation))
    try:
        numbers = sorted(_partitions(consumer, topic))
        for number in numbers:
            partition = TopicPartition(topic, number)
            first, end = consumer.get_watermark_offsets(partition, timeout=READ_TIMEOUT_S)
            start = first if starts is None else max(first, starts[number])
            ends[number] = end
            if start < end:
                partition.offset = start
                consumer.assign([partition])
                yield from _read_until(consumer, topic, end)
    except KafkaException as fault:
        raise BrokerUnreachable(f"the topic {topic!r} could not be read: {fault}") from fault
    finally:
        consumer.close()


def _read_until(consumer: Any, topic: str, end: int) -> Iterator[tuple[bytes, bytes | None]]:
    while True:
        message = consumer.poll(READ_TIMEOUT_S)
        if message is None:
            raise BrokerUnreachable(f"the topic {topic!r} returned no records for {READ_TIMEOUT_S:g} s.")
        error = message.error()
        if error is None:
            if message.key() is not None:
                yield message.key(), message.value()
            if (
                message.offset() >= end - 1
            ):  # with other writers, the end of the partition might never be reached
                return
        elif error.code() == PARTITION_EOF:
            return
        elif error.code() >= 0 and not error.retriable():
            raise BrokerUnreachable(f"the topic {topic!r} could not be read: {error.str()}")


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=READ_TIMEOUT_S).topics[topic]
    if found.error is not None and found.error.code() in UNKNOWN_TOPIC:
        return []
    return list(found.partitions)


def _config(bootstrap: str, isolation: str) -> dict[str, Any]:
    settings = {
        "group.id": "headrace.capture",  # required by librdkafka; the group is never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "isolation.level": isolation,
        "fetch.wait.max.ms": 10,
        "logger": SILENT,
    }
    return client_config(bootstrap, settings)
