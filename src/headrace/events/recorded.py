"""Events as they stand in the log: records with the headers of CloudEvents (binary mode, Kafka binding).

| header | holds |
|---|---|
| `ce_type`, `ce_dataversion` | the class of the event and its version |
| `ce_sequence` | the version of the aggregate after the event |
| `ce_id`, `ce_source` | `Cart/cart-17/3`, unique in the source, which is the store |
| `ce_time`, `ce_subject` | when it was decided; the aggregate: `Cart/cart-17` |
| `ce_commandid` | the command |
| `ce_causationid`, `ce_correlationid` | what caused it, what it belongs to; where that is not the command |
| `ce_actor` | on whose behalf, where it was said |
| `ce_specversion`, `content-type` | `1.0`, `application/json` |

The key is the id of the aggregate, the value are the event's fields as JSON, the timestamp is `ce_time`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from headrace.client.records import UnreadableRecords
from headrace.events.errors import UnreadableEvent
from headrace.protocol.records import NewRecord

if TYPE_CHECKING:
    from headrace.client.partition import TopicPartition
    from headrace.events.aggregate import AggregateForm
    from headrace.events.command import Command
    from headrace.events.event import Event
    from headrace.protocol.records import Headers, Record

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SPECVERSION: Final = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Final = ("content-type", b"application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event in the log, and what is known about it."""

    aggregate: str
    id: str
    """The id of the aggregate."""
    version: int
    """The version of the aggregate after the event: 1 for its first."""
    type: str
    type_version: int
    time: datetime
    data: bytes
    """The event's fields as JSON, as they were written."""
    event_id: str
    command_id: str
    causation: str
    correlation: str
    actor: str | None
    partition: int
    offset: int

    @property
    def fields(self) -> dict[str, Any]:
        """The event's fields as JSON has them."""
        found: dict[str, Any] = json.loads(self.data)
        return found

    def event(self, form: AggregateForm) -> Event:
        """The event itself, as one of the current version of its class."""
        return form.event(self.type).read(self.data, self.type_version)


def write_event(
    store: str, aggregate: str, command: Command, version: int, time_ms: int, event: Event, data: bytes
) -> NewRecord:
    """The record of an event that a command yielded."""
    kind = type(event)
    subject = f"{aggregate}/{command.aggregate_id}"
    headers: list[tuple[str, bytes]] = [
        ("ce_type", kind.__name__.encode()),
        ("ce_dataversion", b"%d" % kind._event_version),
        ("ce_sequence", b"%d" % version),
        ("ce_id", f"{subject}/{version}".encode()),
        ("ce_source", store.encode()),
        ("ce_time", time_text(time_ms).encode()),
        ("ce_subject", subject.encode()),
        ("ce_commandid", command.command_id.encode()),
        _SPECVERSION,
        _CONTENT_TYPE,
    ]
    for name, said in _said(command):
        if said is not None:
            headers.append((name, said.encode()))
    return NewRecord(command.aggregate_id.encode(), data, time_ms, tuple(headers))


def read_event(
    aggregate: str,
    partition: int,
    offset: int,
    time_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> Recorded:
    """The event in a record; `UnreadableEvent` when it is none."""
    named = dict(headers)
    try:
        command_id = _text(named["ce_commandid"])
        return Recorded(
            aggregate=aggregate,
            id=_text(key),
            version=int(_text(named["ce_sequence"])),
            type=_text(named["ce_type"]),
            type_version=int(_text(named["ce_dataversion"])),
            time=from_ms(time_ms),
            data=value or b"{}",
            event_id=_text(named["ce_id"]),
            command_id=command_id,
            causation=_text(named["ce_causationid"]) if "ce_causationid" in named else command_id,
            correlation=_text(named["ce_correlationid"]) if "ce_correlationid" in named else command_id,
            actor=_text(named["ce_actor"]) if "ce_actor" in named else None,
            partition=partition,
            offset=offset,
        )
    except (KeyError, ValueError, AttributeError, OverflowError) as fault:
        raise UnreadableEvent(f"it is no event ({fault!r}): another program wrote to the topic") from fault


def recorded_in(aggregate: str, place: TopicPartition, record: Record) -> Recorded | UnreadableRecords:
    """The event in a record of a partition, or what is wrong with the record."""
    offset, time_ms, key, value, headers = record
    try:
        return read_event(aggregate, place.partition, offset, time_ms, key, value, headers)
    except UnreadableEvent as fault:
        return UnreadableRecords(place, offset, offset, str(fault), key=key)


def from_ms(time_ms: int) -> datetime:
    """A time from milliseconds since 1970."""
    return EPOCH + time_ms * _MILLISECOND


def to_ms(time: datetime) -> int:
    """Milliseconds since 1970, up to the end of the one in which the time lies."""
    return (time - EPOCH) // _MILLISECOND


def time_text(time_ms: int) -> str:
    """A time as CloudEvents write it.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return from_ms(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _said(command: Command) -> tuple[tuple[str, str | None], ...]:
    """Headers that an event has only where the caller said something."""
    return (
        ("ce_causationid", command.causation or None),
        ("ce_correlationid", command.correlation or None),
        ("ce_actor", command.actor),
    )


def _text(value: bytes | None) -> str:
    if value is None:
        raise ValueError("null")
    return value.decode()
