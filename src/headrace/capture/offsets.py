"""How far each capture is: a record in a compacted topic, written in the transaction that it belongs to."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.capture.errors import CaptureError
from headrace.capture.settings import slot_of
from headrace.client.errors import BrokerUnreachable
from headrace.client.topics import NewTopic, create_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.client.cluster import Cluster

TOPIC: Final = "headrace.captures"
STOP: Final = "/stop"
"""Behind the name of a capture: the key of a request to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """A table whose snapshot is in its topic."""

    topic: str
    position: int
    """Of the snapshot: transactions that committed before it are in it."""
    key: tuple[str, ...]
    """The columns that the keys of its records are made of; none where they have no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Up to where a capture has written its database's log."""

    name: str
    address: str
    """The database, without password, for people. It is never connected to: whoever may write the topic could
    have an operator's password sent to a server of their own."""
    system: str
    """What tells this database from a copy or another one under the same address."""
    position: int
    """The end of the last transaction that is in the log; 0 while there is no slot yet."""
    time_ms: int = 0
    """The newest time of a record: later ones are not older."""
    tables: Mapping[str, TableProgress] = field(default_factory=dict)

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_of(self.name)

    def with_table(self, name: str, table: TableProgress) -> Self:
        """The same with one more table whose snapshot is taken."""
        return replace(self, tables={**self.tables, name: table})

    def to_bytes(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """A record's value read back."""
        try:
            document: dict[str, Any] = json.loads(value)
            tables = {
                name: TableProgress(**{**table, "key": tuple(table["key"])})
                for name, table in document.pop("tables").items()
            }
            return cls(**document, tables=tables)
        except (ValueError, TypeError, KeyError) as fault:
            raise CaptureError(
                f"a record in {TOPIC!r} is not the progress of a capture ({fault}): who wrote it?"
            ) from fault


def make_topic(cluster: Cluster) -> None:
    """See to it that there is a topic for progress."""
    create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs={"cleanup.policy": "compact"})])


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the topic says."""

    captures: Mapping[str, Progress]
    stopped: frozenset[str]
    """The names of captures that were asked to stop."""


def read_progress(bootstrap: str) -> Known:
    """The progress of every capture that is known, by name."""
    from headrace.capture.offsets import newest_records

    newest = newest_records(bootstrap, TOPIC)
    names = {key.decode(): value for key, value in newest.items()}
    return Known(
        captures={
            name: replace(Progress.from_bytes(value), name=name)
            for name, value in names.items()
            if not name.endswith(STOP)
        },
        stopped=frozenset(name.removesuffix(STOP) for name in names if name.endswith(STOP)),
    )


PATIENCE_S: Final = 30.0
END: Final = -191
"""What librdkafka calls the end of a partition."""
UNKNOWN_TOPIC: Final = (3, -190, -188)
"""Kafka's and librdkafka's errors for a topic that is not there."""


def read_records(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Key and value of all committed records with a key; nothing where there is no such topic."""
    return _records(bootstrap, topic, "read_committed", None, {})


def newest_records(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """The value of each key whose newest committed record has one; nothing where there is no such topic."""
    newest: dict[bytes, bytes] = {}
    for key, value in read_records(bootstrap, topic):
        if value is None:
            newest.pop(key, None)
        else:
            newest[key] = value
    return newest


def live_keys(bootstrap: str, topic: str) -> set[bytes]:
    """The keys whose newest record has a value, with those of the one transaction that may be open.

    Only for a topic that the caller alone writes: what follows the last stable offset is taken for its own.
    """
    live: set[bytes] = set()
    stable: dict[int, int] = {}
    committed = _records(bootstrap, topic, "read_committed", None, stable)
    # This one begins when the first one has ended, and where: at the last stable offset.
    opened = _records(bootstrap, topic, "read_uncommitted", stable, {})
    for key, value in itertools.chain(committed, opened):
        if value is None:
            live.discard(key)
        else:
            live.add(key)
    return live


def _records(
    bootstrap: str, topic: str, isolation: str, starts: dict[int, int] | None, ends: dict[int, int]
) -> Iterator[tuple[bytes, bytes | None]]:
    """The keys and values of all records from `starts` on; `ends` gets to know where each partition ended."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(_config(bootstrap, isolation))
    try:
        numbers = sorted(_partitions(consumer, topic))
        for number in numbers:
            place = TopicPartition(topic, number)
            first, end = consumer.get_watermark_offsets(place, timeout=PATIENCE_S)
            start = first if starts is None else max(first, starts[number])
            ends[number] = end
            if start < end:
                place.offset = start
                consumer.assign([place])
                yield from _until(consumer, topic, end)
    except KafkaException as fault:
        raise BrokerUnreachable(f"the topic {topic!r} could not be read: {fault}") from fault
    finally:
        consumer.close()


def _until(consumer: Any, topic: str, end: int) -> Iterator[tuple[bytes, bytes | None]]:
    while True:
        message = consumer.poll(PATIENCE_S)
        if message is None:
            raise BrokerUnreachable(f"the topic {topic!r} gave nothing for {PATIENCE_S:g} s.")
        error = message.error()
        if error is None:
            if message.key() is not None:
                yield message.key(), message.value()
            if message.offset() >= end - 1:  # others may be writing: there might never be an end
                return
        elif error.code() == END:
            return
        elif error.code() >= 0 and not error.retriable():
            raise BrokerUnreachable(f"the topic {topic!r} could not be read: {error.str()}")


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic]
    if found.error is not None and found.error.code() in UNKNOWN_TOPIC:
        return []
    return list(found.partitions)


def _config(bootstrap: str, isolation: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "headrace.capture",  # asked for, and never joined
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "isolation.level": isolation,
        "fetch.wait.max.ms": 10,
        "logger": logging.Logger("librdkafka", level=logging.CRITICAL + 1),
    }
