"""A program that copies a topic to another, each batch in one transaction with its offsets, until its end.

    python -m tests.soak.copier BOOTSTRAP SOURCE TARGET

It is crash-only: any error ends it at once, and its parent restarts it. A record keeps
its partition, and its value is written in capitals.
"""

import os
import sys
import traceback
from typing import Any

from confluent_kafka import Consumer, Message, Producer

BATCH = 100
RECONNECTING: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    # When its only broker is away, librdkafka 2.15 forgets its brokers and starts over, but keeps sending
    # the offsets of a transaction to the coordinator that it threw away: the transaction never ends.
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}


def main(bootstrap: str, source: str, target: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "copier",
            "transaction.timeout.ms": 30_000,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            **RECONNECTING,
        }
    )
    producer.init_transactions(60)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "copier",
            # A static member that comes back has its partitions at once, and need not be missed first.
            "group.instance.id": "copier",
            "session.timeout.ms": 30_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **RECONNECTING,
        }
    )
    consumer.subscribe([source])
    while True:
        messages = consumer.consume(BATCH, 0.2)
        for message in messages:
            if (error := message.error()) is not None and error.fatal():
                raise RuntimeError(error.str())
        records = [message for message in messages if message.error() is None]
        if records:
            copy(producer, consumer, records, target)


def copy(producer: Producer, consumer: Consumer, messages: list[Message], target: str) -> None:
    """Write the messages and their offsets, all or nothing."""
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, message.value().upper(), partition=message.partition())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001 - whatever it was, this process ends
        traceback.print_exc()
        os._exit(1)  # a client that waits for its broker would hold up the end
