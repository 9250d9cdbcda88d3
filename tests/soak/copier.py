"""A program that copies a topic to another, each batch in one transaction with its offsets, until its end.

    python -m tests.soak.copier BOOTSTRAP SOURCE TARGET

It is crash-only: whatever goes wrong ends it, and whoever started it starts it again. A record keeps its
partition, and its value is written in capitals.
"""

import sys

from confluent_kafka import Consumer, Message, Producer

BATCH = 100


def main(bootstrap: str, source: str, target: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": "copier",
            "transaction.timeout.ms": 30_000,
            "linger.ms": 1,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
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
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    while True:
        messages = [message for message in consumer.consume(BATCH, 0.2) if message.error() is None]
        if messages:
            copy(producer, consumer, messages, target)


def copy(producer: Producer, consumer: Consumer, messages: list[Message], target: str) -> None:
    """Write the messages and their offsets, all or nothing."""
    producer.begin_transaction()
    for message in messages:
        producer.produce(target, message.value().upper(), partition=message.partition())
    positions = consumer.position(consumer.assignment())
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)


if __name__ == "__main__":
    main(*sys.argv[1:])
