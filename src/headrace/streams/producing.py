"""Records handed to a producer of librdkafka's."""

from __future__ import annotations

from typing import Any


def produce(producer: Any, topic: str, **record: Any) -> None:
    """Hand over a record, waiting while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
