"""Reads a topic in batches: from positions (start, end, an offset, a time), or as a member of a group."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.output import RequestFailed
from headrace.cli.session import LOST

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from confluent_kafka import KafkaError, Message

    from headrace.cli.session import BrokerSession


UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
AGO: Final = re.compile(r"-(\d+)([smhdw])")
BATCH: Final = 10_000
POLL_S: Final = 0.1
"""How long a batch is collected, and how soon Ctrl-C is handled."""
NO_GROUP: Final = "headrace-consume"
"""librdkafka insists on a group id; without a subscription nothing is done under it."""


class PositionKind(StrEnum):
    """The kind of a position."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in each partition of a topic."""

    kind: PositionKind
    value: int = 0
    """The offset, or the time in milliseconds since 1970."""


START: Final = Position(kind=PositionKind.START)
END: Final = Position(kind=PositionKind.END)


def read_position(text: str, *, now: datetime | None = None) -> Position:
    """Parse a position. A time without a zone is local time.

    >>> read_position("end").kind
    <PositionKind.END: 'end'>
    >>> read_position("42").value
    42
    >>> read_position("1970-01-01T00:00:01Z").value
    1000
    >>> read_position("-5m", now=datetime(1970, 1, 1, 0, 6, tzinfo=UTC)).value
    60000
    """
    if text in (PositionKind.START, PositionKind.END):
        return Position(kind=PositionKind(text))
    if text.isascii() and text.isdigit():
        return Position(kind=PositionKind.OFFSET, value=int(text))
    ago = AGO.fullmatch(text)
    if ago is not None:
        span = timedelta(**{UNITS[ago[2]]: int(ago[1])})
        return _at((now or datetime.now(UTC)) - span)
    try:
        return _at(datetime.fromisoformat(text).astimezone(UTC))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position in a topic: use start, end, an offset such as 42, "
            "a time such as 2026-01-31T12:00, or a time ago such as -5m (s, m, h, d, w)"
        ) from None


def _at(time: datetime) -> Position:
    return Position(kind=PositionKind.TIME, value=max(0, int(time.timestamp() * 1000)))


NONE_FOUND: Final = -1
NO_ANSWER: Final = -1001


class OutOfRange(RequestFailed):
    """An offset outside of the partition's range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offset range of a partition; `end` is exclusive."""

    start: int
    end: int


Partition = tuple[str, int]
"""Topic and partition index."""


def read_offset_ranges(
    session: BrokerSession, partitions: Collection[Partition], *, committed_only: bool = False
) -> dict[Partition, OffsetRange]:
    """The offset ranges of partitions; with `committed_only` they end at the last stable offset."""
    starts = _read(session, dict.fromkeys(partitions, _spec("earliest")), committed_only=committed_only)
    ends = _read(session, dict.fromkeys(partitions, _spec("latest")), committed_only=committed_only)
    return {partition: OffsetRange(start=starts[partition], end=ends[partition]) for partition in partitions}


def resolve(
    session: BrokerSession, position: Position, ranges: Mapping[Partition, OffsetRange]
) -> dict[Partition, int]:
    """The offset of `position` in each partition of `ranges`.

    A time resolves to the first record with that timestamp or a later one, and to the end if there is none.
    Raises `OutOfRange` if a partition does not have the offset.
    """
    if position.kind is PositionKind.START:
        return {partition: held.start for partition, held in ranges.items()}
    if position.kind is PositionKind.END:
        return {partition: held.end for partition, held in ranges.items()}
    if position.kind is PositionKind.TIME:
        return _at_time(session, position.value, ranges)
    for partition, held in ranges.items():
        _check(position.value, partition, held)
    return dict.fromkeys(ranges, position.value)


def _at_time(
    session: BrokerSession, time_ms: int, ranges: Mapping[Partition, OffsetRange]
) -> dict[Partition, int]:
    found = _read(session, dict.fromkeys(ranges, _spec("for_timestamp", time_ms)))
    return {
        partition: ranges[partition].end if offset == NONE_FOUND else offset
        for partition, offset in found.items()
    }


def _check(offset: int, partition: Partition, held: OffsetRange) -> None:
    if not held.start <= offset <= held.end:
        topic, number = partition
        raise OutOfRange(
            f"partition {number} of {topic!r} has no offset {offset}, but {held.start} to {held.end}.\n"
            "Choose an offset in between, or start, or end; --partition limits the choice to one."
        )


def _answered(offset: int) -> int:
    # librdkafka reports a request without a response as a success with this offset.
    if offset == NO_ANSWER:
        raise RequestFailed("the broker did not list offsets: it sent no response", code=LOST)
    return offset


def _spec(kind: str, *arguments: int) -> Any:
    """One of librdkafka's offset specifications, whose factories are not typed."""
    from headrace.cli.librdkafka import OffsetSpec

    return getattr(OffsetSpec, kind)(*arguments)


def _read(
    session: BrokerSession, specs: Mapping[Partition, Any], *, committed_only: bool = False
) -> dict[Partition, int]:
    from confluent_kafka import IsolationLevel, TopicPartition

    level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
    if not specs:
        return {}
    asked = {TopicPartition(*partition): spec for partition, spec in specs.items()}

    def call() -> dict[Partition, int]:
        futures = session.admin.list_offsets(asked, isolation_level=level, request_timeout=session.timeout_s)
        return {
            (place.topic, place.partition): _answered(future.result().offset)
            for place, future in futures.items()
        }

    return session.request(call, "list offsets")


class TopicConsumer:
    """The records of one topic, in order within each partition.

    `until` is the end offset (exclusive) of each partition; without it the reader never ends. In a group, a
    batch counts as read when the next one is requested. Offsets are committed every second and at the end:
    at-least-once.
    """

    def __init__(
        self,
        session: BrokerSession,
        topic: str,
        *,
        group: str | None,
        until: Mapping[int, int] | None,
        **config: Any,
    ) -> None:
        from confluent_kafka import Consumer

        self._session = session
        self._topic = topic
        self._group = group
        self._until = until
        self._reached: set[int] = set()
        self._assigned: set[int] | None = None
        self._down_since: float | None = None
        self._consumer = Consumer({**self._config(config), "error_cb": self._on_error})

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions from these offsets."""
        from confluent_kafka import TopicPartition

        until = self._until
        wanted = {number: at for number, at in offsets.items() if until is None or at < until[number]}
        self._assigned = set(wanted)
        self._consumer.assign([TopicPartition(self._topic, number, at) for number, at in wanted.items()])

    def subscribe(self) -> None:
        """Read the assigned partitions from the committed offsets of the group."""
        self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def batches(self, count: int | None = None) -> Iterator[list[Message]]:
        """Batches of records, at most `count` records in total, up to `until`."""
        left = count
        while left != 0 and not self._is_finished():
            messages = self._consumer.consume(BATCH if left is None else min(BATCH, left), POLL_S)
            records = self._records_in(messages)
            self._check_connection(heard=bool(messages))
            if records:
                yield records
                self._store(records)
                left = None if left is None else left - len(records)

    def close(self) -> None:
        """Commit, leave the group, and close the connections."""
        self._consumer.close()

    def _records_in(self, messages: list[Message]) -> list[Message]:
        """The records among librdkafka's messages, without those at or after `until`."""
        records = [message for message in messages if message.error() is None]
        if len(records) != len(messages):
            for message in messages:
                self._notice(message)
        return records if self._until is None else self._before_the_end(records, self._until)

    def _before_the_end(self, records: list[Message], until: Mapping[int, int]) -> list[Message]:
        wanted = []
        for record in records:
            number: Any = record.partition()
            offset: Any = record.offset()
            if offset < until[number]:
                wanted.append(record)
            if offset + 1 >= until[number]:
                self._reached.add(number)
        return wanted

    def _notice(self, message: Message) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offsets may be marks of transactions, or compacted away: no record shows them passed.
            self._reached.add(message.partition() or 0)
        elif error.fatal() or not error.retriable():
            raise self._failure(error)

    def _on_error(self, error: KafkaError) -> None:
        """Remember since when no broker is reachable; librdkafka calls this while a batch is collected."""
        if error.name() == "_ALL_BROKERS_DOWN":
            self._down_since = self._down_since or time.monotonic()

    def _failure(self, error: KafkaError) -> RequestFailed:
        return RequestFailed(
            f"reading {self._topic!r} failed: {error.str()} ({error.name()})", code=error.code()
        )

    def _check_connection(self, *, heard: bool) -> None:
        """Raise an error if no broker has been reachable for longer than the timeout."""
        if heard:
            self._down_since = None
        if self._down_since is None or time.monotonic() - self._down_since < self._session.timeout_s:
            return
        self._session.probe()
        self._down_since = None

    def _is_finished(self) -> bool:
        if self._until is None or self._assigned is None:
            return False
        return self._assigned <= self._reached

    def _store(self, records: list[Message]) -> None:
        from confluent_kafka import TopicPartition

        if self._group is None:
            return
        last: dict[Any, Any] = {record.partition(): record.offset() for record in records}
        places = [TopicPartition(self._topic, number, offset + 1) for number, offset in last.items()]
        mine = [place for place in places if place.partition in (self._assigned or ())]
        if mine:
            self._consumer.store_offsets(offsets=mine)

    def _on_assign(self, _: Any, places: list[Any]) -> None:
        self._assigned = {place.partition for place in places}
        self._reached &= self._assigned

    def _on_revoke(self, _: Any, places: list[Any]) -> None:
        lost = {place.partition for place in places}
        self._assigned = None
        self._reached -= lost

    def _config(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return self._session.client_config(
            group_id=self._group or NO_GROUP,
            enable_auto_commit=self._group is not None,
            auto_commit_interval_ms=1000,
            enable_auto_offset_store=False,
            enable_partition_eof=self._until is not None,
            # The end of a partition is noticed when a fetch comes back empty: soon, when it is waited for.
            fetch_wait_max_ms=500 if self._until is None else 50,
            **more,
        )
