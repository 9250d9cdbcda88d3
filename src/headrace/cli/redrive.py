"""Dead letters back into their queue, each once: moved by transactions, which also say how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.shares.dead_letters import NAMES, PARTITION, dead_letter_topic
from headrace.broker.shares.reader import DELAY_MS, DELIVER_AT, ONLY_GROUP
from headrace.cli.queue_admin import REDRIVER, read_dead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message, Producer

    from headrace.cli.session import Session

DROPPED: Final = NAMES | {DELAY_MS, DELIVER_AT, ONLY_GROUP}
"""Headers that a letter does not take back: it has waited long enough, and begins anew."""


def redrive(session: Session, topic: str, group: str, count: int | None) -> Iterator[int]:
    """Move dead letters back, batch by batch; gives how many were moved in each.

    A letter goes to the partition that it came from, and to this group alone: other share groups of the topic
    pass it over. Then it is deleted from the dead letters.
    """
    from confluent_kafka import Producer

    name = dead_letter_topic(topic, group)
    producer = Producer(session.client_config(transactional_id=f"{REDRIVER}.{name}"))
    with session.asking(f"move the dead letters of {group!r}"):
        producer.init_transactions(session.timeout_s)
        for batch in read_dead(session, topic, group, count):
            _move(session, producer, topic, group, batch)
            _delete(session, name, _next(batch))
            yield len(batch)


def _move(session: Session, producer: Producer, topic: str, group: str, batch: list[Message]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    producer.begin_transaction()
    for letter in batch:
        headers: list[Any] = [header for header in letter.headers() or () if header[0] not in DROPPED]
        origin = dict(letter.headers() or ()).get(PARTITION)
        producer.produce(
            topic,
            letter.value(),
            letter.key(),
            partition=int(origin) if origin else -1,
            headers=[*headers, (ONLY_GROUP, group.encode())],
        )
    # A consumer that reads nothing: it only stands for the group in whose name the offsets are kept.
    keeper = Consumer(session.client_config(group_id=REDRIVER))
    try:
        reached = TopicPartition(dead_letter_topic(topic, group), 0, _next(batch))
        producer.send_offsets_to_transaction([reached], keeper.consumer_group_metadata(), session.timeout_s)
        producer.commit_transaction(session.timeout_s)
    finally:
        keeper.close()


def _next(batch: list[Message]) -> int:
    return (batch[-1].offset() or 0) + 1


def _delete(session: Session, name: str, end: int) -> None:
    from confluent_kafka import TopicPartition

    session.ask_about("delete_records", TopicPartition(name, 0, end), f"drop what went back from {name!r}")
