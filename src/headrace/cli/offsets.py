"""Offsets of a topic's partitions: where they start, where they end, and what they were at some time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.failure import RequestFailed
from headrace.cli.position import Kind
from headrace.cli.session import LOST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.cli.position import Position
    from headrace.cli.session import Session

NONE_FOUND: Final = -1
NO_ANSWER: Final = -1001


class OutOfRange(RequestFailed):
    """An offset that the partition does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The offsets that a partition holds: from `start`, up to and without `end`."""

    start: int
    end: int


Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


def read_extents(
    session: Session, partitions: Collection[Partition], *, committed_only: bool = False
) -> dict[Partition, Extent]:
    """The extents of partitions; with `committed_only` they end where an open transaction begins."""
    starts = _read(session, dict.fromkeys(partitions, _spec("earliest")), committed_only=committed_only)
    ends = _read(session, dict.fromkeys(partitions, _spec("latest")), committed_only=committed_only)
    return {partition: Extent(start=starts[partition], end=ends[partition]) for partition in partitions}


def resolve(
    session: Session, position: Position, extents: Mapping[Partition, Extent]
) -> dict[Partition, int]:
    """The offset of `position` in each of the partitions whose extents are given.

    A time means the first record of that time or later, and the end where there is none. An offset that one
    of the partitions does not hold is an error.
    """
    if position.kind is Kind.START:
        return {partition: extent.start for partition, extent in extents.items()}
    if position.kind is Kind.END:
        return {partition: extent.end for partition, extent in extents.items()}
    if position.kind is Kind.TIME:
        return _at_time(session, position.value, extents)
    for partition, extent in extents.items():
        _check(position.value, partition, extent)
    return dict.fromkeys(extents, position.value)


def _at_time(session: Session, time_ms: int, extents: Mapping[Partition, Extent]) -> dict[Partition, int]:
    found = _read(session, dict.fromkeys(extents, _spec("for_timestamp", time_ms)))
    return {
        partition: extents[partition].end if offset == NONE_FOUND else offset
        for partition, offset in found.items()
    }


def _check(offset: int, partition: Partition, extent: Extent) -> None:
    if not extent.start <= offset <= extent.end:
        topic, number = partition
        raise OutOfRange(
            f"partition {number} of {topic!r} has no offset {offset}, but {extent.start} to {extent.end}.\n"
            "Choose an offset in between, or start, or end; --partition limits the choice to one."
        )


def _answered(offset: int) -> int:
    # librdkafka reports a request that got no answer as a success with this offset.
    if offset == NO_ANSWER:
        raise RequestFailed("the broker did not list offsets: it gave no answer", code=LOST)
    return offset


def _spec(kind: str, *arguments: int) -> Any:
    """One of librdkafka's questions for an offset; its makers are not typed."""
    from headrace.cli.librdkafka import OffsetSpec

    return getattr(OffsetSpec, kind)(*arguments)


def _read(
    session: Session, specs: Mapping[Partition, Any], *, committed_only: bool = False
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
