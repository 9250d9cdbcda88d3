"""Dead letters as commands see them: read from their topic, and how many of them were sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.streams.letter import DeadLetter, group_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.cli.session import Session

SUFFIX: Final = ".dead"


def dead_topic(session: Session, name: str) -> str:
    """The topic of dead letters that a job's name, or its own, stands for."""
    from headrace.cli.topic_admin import find_partitions, topic_names

    known = topic_names(session)
    is_own = name.endswith(SUFFIX) or (f"{name}{SUFFIX}" not in known and name in known)
    topic = name if is_own else f"{name}{SUFFIX}"
    find_partitions(session, topic)  # which explains it if there is none
    return topic


def read_letters(
    session: Session, topic: str, *, begin: Mapping[int, int] | None = None
) -> Iterator[DeadLetter]:
    """The letters that are in a topic now; of each partition from `begin` on, if that is given."""
    from headrace.cli.offsets import read_extents
    from headrace.cli.reader import Reader
    from headrace.cli.topic_admin import choose_partitions

    partitions = [(topic, number) for number in choose_partitions(session, topic, ())]
    extents = {
        number: extent
        for (_, number), extent in read_extents(session, partitions, committed_only=True).items()
    }
    until = {number: extent.end for number, extent in extents.items()}
    reader = Reader(session, topic, group=None, until=until, isolation_level="read_committed")
    try:
        reader.assign(
            {number: max(extent.start, (begin or {}).get(number, 0)) for number, extent in extents.items()}
        )
        for batch in reader.batches():
            yield from map(_letter, batch)
    finally:
        reader.close()


def sent_again(session: Session, topic: str) -> dict[int, int]:
    """Up to which offset of each partition letters were sent again."""
    from confluent_kafka import Consumer, TopicPartition

    from headrace.cli.topic_admin import choose_partitions

    consumer = Consumer(session.client_config(group_id=group_of(topic), enable_auto_commit=False))
    try:
        asked = [TopicPartition(topic, number) for number in choose_partitions(session, topic, ())]
        found = session.ask(
            lambda: consumer.committed(asked, timeout=session.timeout_s), "tell what was sent again"
        )
        return {place.partition: max(0, place.offset) for place in found}
    finally:
        consumer.close()


def _letter(message: Any) -> DeadLetter:
    return DeadLetter(
        partition=message.partition(),
        offset=message.offset(),
        time_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=dict(message.headers() or ()),
    )
