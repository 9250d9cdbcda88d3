"""Positions in a topic (start, end, an offset, a time), and the offsets that they resolve to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.session import LOST
from headrace.cli.termination import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.cli.session import BrokerSession

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
AGO: Final = re.compile(r"-(\d+)([smhdw])")


class Kind(StrEnum):
    """The kind of a position."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in each partition of a topic."""

    kind: Kind
    value: int = 0
    """The offset, or the time in milliseconds since 1970."""


START: Final = Position(kind=Kind.START)
END: Final = Position(kind=Kind.END)


def read_position(text: str, *, now: datetime | None = None) -> Position:
    """Parse a position. A time without a zone is local time.

    >>> read_position("end").kind
    <Kind.END: 'end'>
    >>> read_position("42").value
    42
    >>> read_position("1970-01-01T00:00:01Z").value
    1000
    >>> read_position("-5m", now=datetime(1970, 1, 1, 0, 6, tzinfo=UTC)).value
    60000
    """
    if text in (Kind.START, Kind.END):
        return Position(kind=Kind(text))
    if text.isascii() and text.isdigit():
        return Position(kind=Kind.OFFSET, value=int(text))
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
    return Position(kind=Kind.TIME, value=max(0, int(time.timestamp() * 1000)))


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
    if position.kind is Kind.START:
        return {partition: held.start for partition, held in ranges.items()}
    if position.kind is Kind.END:
        return {partition: held.end for partition, held in ranges.items()}
    if position.kind is Kind.TIME:
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
        raise RequestFailed("the broker did not list offsets: it gave no answer", code=LOST)
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

    def question() -> dict[Partition, int]:
        futures = session.admin.list_offsets(asked, isolation_level=level, request_timeout=session.timeout_s)
        return {
            (place.topic, place.partition): _answered(future.result().offset)
            for place, future in futures.items()
        }

    return session.ask(question, "list offsets")
