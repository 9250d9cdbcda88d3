"""What a topic that capture writes holds now: the newest record of each key, read by librdkafka."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.client.errors import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

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
