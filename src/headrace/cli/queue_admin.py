"""Queues on a broker: share groups, their progress and their dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.shares.dead_letters import (
    DELIVERIES,
    NAMES,
    OFFSET,
    PARTITION,
    REASON,
    dead_letter_topic,
)
from headrace.broker.shares.reader import DELAY_MS, DELIVER_AT, ONLY_GROUP
from headrace.cli.output import RequestFailed
from headrace.cli.reader import OffsetRange, TopicConsumer, read_offset_ranges
from headrace.client.errors import RequestRefused
from headrace.client.offsets import fetch_offsets
from headrace.client.partition import TopicPartition
from headrace.client.share_groups import (
    describe_share_group,
    group_settings,
    list_share_groups,
    share_progress,
)
from headrace.errors import Misuse, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message, Producer

    from headrace.cli.session import BrokerSession
    from headrace.client.share_groups import ShareProgress

REDRIVE_GROUP: Final = "headrace-redrive"
"""The consumer group whose offsets mark the redriven dead letters."""


class UnknownQueue(RequestFailed):
    """The share group does not exist, or does not read the topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueListing:
    """One topic of a share group."""

    group: str
    topic: str
    state: str
    members: int
    left: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMember:
    """One member of a share group."""

    member: str
    client: str
    host: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePartition:
    """The progress of a share group in one partition."""

    topic: str
    partition: int
    start: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDetails:
    """The output of `headrace queue describe`."""

    group: str
    state: str
    members: tuple[QueueMember, ...]
    partitions: tuple[QueuePartition, ...]
    dead: dict[str, int]
    """The number of dead letters by dead-letter topic."""
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDeadLetter:
    """A record in the dead-letter topic of a queue."""

    offset: int
    key: str | None
    value: str | None
    reason: str
    deliveries: int
    partition: int
    origin: int
    """Its offset in the queue."""


def list_queues(session: BrokerSession) -> list[QueueListing]:
    """All share groups with each of their topics."""
    return [
        QueueListing(
            group=group,
            topic=topic,
            state=found.group_state.lower(),
            members=sum(topic in member.subscribed_topic_names for member in found.members),
            left=sum(max(part.lag, 0) for part in progress if part.topic == topic),
            dead=count_dead(session, topic, group),
        )
        for group in list_share_groups(session.cluster)
        for found in [describe_share_group(session.cluster, group)]
        for progress in [share_progress(session.cluster, group)]
        for topic in topics_of(progress)
    ]


def describe_queue(session: BrokerSession, group: str) -> QueueDetails:
    """Members, progress and dead letters of a share group; raises `UnknownQueue` if it does not exist."""
    progress = read_progress(session, group)
    found = describe_share_group(session.cluster, group)
    dead = {
        dead_letter_topic(topic, group): count_dead(session, topic, group) for topic in topics_of(progress)
    }
    return QueueDetails(
        group=group,
        state=found.group_state.lower(),
        members=tuple(
            QueueMember(
                member=member.member_id,
                client=member.client_id,
                host=member.client_host.lstrip("/"),
                topics=tuple(member.subscribed_topic_names),
            )
            for member in found.members
        ),
        partitions=tuple(
            QueuePartition(
                topic=part.topic, partition=part.partition, start=part.start, left=max(part.lag, 0)
            )
            for part in progress
        ),
        dead={topic: count for topic, count in dead.items() if count},
        settings=group_settings(session.cluster, group),
    )


def read_progress(session: BrokerSession, group: str) -> list[ShareProgress]:
    """The progress of a share group; raises `UnknownQueue` if there is none."""
    try:
        return share_progress(session.cluster, group)
    except RequestRefused as refusal:
        if refusal.code is not ErrorCode.group_id_not_found:
            raise
        known = did_you_mean(group, list_share_groups(session.cluster))
        raise UnknownQueue(
            f"share group {group!r} does not exist.{known}\n`headrace queue list` shows what there is."
        ) from refusal


def topics_of(progress: list[ShareProgress]) -> list[str]:
    """The topics that a group reads, by name."""
    return sorted({part.topic for part in progress})


def choose_topic(session: BrokerSession, group: str, topic: str | None) -> str:
    """The given topic, or the only topic of the group."""
    topics = topics_of(read_progress(session, group))
    if topic is None and len(topics) == 1:
        return topics[0]
    if topic in topics:
        return topic
    names = ", ".join(topics) or "nothing yet"
    if topic is None:
        raise Misuse(f"share group {group!r} reads {names}: choose one with --topic.")
    raise UnknownQueue(f"share group {group!r} does not read {topic!r}; it reads {names}.")


def dead_letter_range(session: BrokerSession, topic: str, group: str) -> OffsetRange:
    """The offsets of dead letters that were not redriven; empty if there is no dead-letter topic."""
    name = dead_letter_topic(topic, group)
    if name not in session.cluster.topics([name]):
        return OffsetRange(start=0, end=0)
    place = TopicPartition(name, 0)
    held = read_offset_ranges(session, [(name, 0)])[name, 0]
    redriven = fetch_offsets(session.cluster, REDRIVE_GROUP, [place]).get(place, 0)
    return OffsetRange(start=min(max(held.start, redriven), held.end), end=held.end)


def count_dead(session: BrokerSession, topic: str, group: str) -> int:
    """The number of dead letters of a queue."""
    held = dead_letter_range(session, topic, group)
    return held.end - held.start


def read_dead(
    session: BrokerSession, topic: str, group: str, count: int | None = None
) -> Iterator[list[Message]]:
    """The dead letters of a queue, batch by batch, the oldest first."""
    held = dead_letter_range(session, topic, group)
    if held.start >= held.end:
        return
    reader = TopicConsumer(session, dead_letter_topic(topic, group), group=None, until={0: held.end})
    try:
        reader.assign({0: held.start})
        yield from reader.batches(count)
    finally:
        reader.close()


def show_letter(message: Message) -> QueueDeadLetter:
    """A dead letter as it is printed; binary data is printed as a Python literal."""
    headers = dict(message.headers() or ())

    def number(name: str) -> int:
        text = headers.get(name) or b""
        return int(text) if text.isdigit() else -1

    return QueueDeadLetter(
        offset=message.offset() or 0,
        key=_text(message.key()),
        value=_text(message.value()),
        reason=_text(headers.get(REASON)) or "",
        deliveries=number(DELIVERIES),
        partition=number(PARTITION),
        origin=number(OFFSET),
    )


def _text(data: bytes | str | None) -> str | None:
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return repr(data)


DROPPED: Final = NAMES | {DELAY_MS, DELIVER_AT, ONLY_GROUP}
"""Headers that a redriven message does not keep, so that it is delivered at once, as a new one."""


def redrive(session: BrokerSession, topic: str, group: str, count: int | None) -> Iterator[int]:
    """Move dead letters back to their queue. Yields the number of moved messages per batch.

    A message goes to its original partition, for this share group only: other groups of the topic skip it.
    Then it is deleted from the dead-letter topic.
    """
    from confluent_kafka import Producer

    name = dead_letter_topic(topic, group)
    producer = Producer(session.client_config(transactional_id=f"{REDRIVE_GROUP}.{name}"))
    with session.translated_errors(f"move the dead letters of {group!r}"):
        producer.init_transactions(session.timeout_s)
        for batch in read_dead(session, topic, group, count):
            _move(session, producer, topic, group, batch)
            _delete(session, name, _next(batch))
            yield len(batch)


def _move(session: BrokerSession, producer: Producer, topic: str, group: str, batch: list[Message]) -> None:
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
    # It reads nothing: its group metadata is needed to commit offsets in the transaction.
    keeper = Consumer(session.client_config(group_id=REDRIVE_GROUP))
    try:
        reached = TopicPartition(dead_letter_topic(topic, group), 0, _next(batch))
        producer.send_offsets_to_transaction([reached], keeper.consumer_group_metadata(), session.timeout_s)
        producer.commit_transaction(session.timeout_s)
    finally:
        keeper.close()


def _next(batch: list[Message]) -> int:
    return (batch[-1].offset() or 0) + 1


def _delete(session: BrokerSession, name: str, end: int) -> None:
    from confluent_kafka import TopicPartition

    session.request_one("delete_records", TopicPartition(name, 0, end), f"drop what went back from {name!r}")
