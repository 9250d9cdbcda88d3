"""Events as immutable, typed and versioned values, and as records of the log.

    class Added(Event):
        product: str
        quantity: int

An event has the annotated fields, passed by name and checked when it is created. The log is never rewritten.
When the fields change, the version increases, and one function for each older version converts its fields to
those of the next one:

    class Added(Event, version=2, formerly=("ItemAdded",)):
        product: str
        quantity: int
        price: Decimal

        def upcast_1(fields):
            return {**fields, "price": "0"}

In the log an event is a record with the headers of CloudEvents (binary mode, Kafka binding):

| header | holds |
|---|---|
| `ce_type`, `ce_dataversion` | the class of the event and its version |
| `ce_sequence` | the version of the aggregate after the event |
| `ce_id`, `ce_source` | `Cart/cart-17/3`, unique in the source, which is the store |
| `ce_time`, `ce_subject` | when it was decided; the aggregate: `Cart/cart-17` |
| `ce_commandid` | the command |
| `ce_causationid`, `ce_correlationid` | the cause, and what it belongs to; absent if that is the command |
| `ce_actor` | on whose behalf, if given |
| `ce_specversion`, `content-type` | `1.0`, `application/json` |

The key is the id of the aggregate, the value holds the event's fields as JSON, the timestamp is `ce_time`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final, dataclass_transform, get_type_hints

from headrace.client.fetch import UnreadableRecords
from headrace.events.codecs import Codec, codec_of, read_with
from headrace.events.errors import InvalidEvent, Misuse, UnknownEvent, UnreadableEvent
from headrace.protocol.records import NewRecord
from headrace.tracing import HEADER

if TYPE_CHECKING:
    from headrace.client.partition import TopicPartition
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.commands import Command
    from headrace.protocol.records import Headers, Record

_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """The base class of events: `class Added(Event): product: str`."""

    _event_version: ClassVar[int] = 1
    _former_names: ClassVar[tuple[str, ...]] = ()
    _schema: ClassVar[EventSchema]

    def __init_subclass__(
        cls, *, version: int = 1, formerly: str | tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls._event_version = version
        cls._former_names = (formerly,) if isinstance(formerly, str) else tuple(formerly)
        missing = [
            number for number in range(1, version) if not callable(getattr(cls, f"upcast_{number}", None))
        ]
        if missing:
            raise Misuse(
                f"{cls.__name__} has version {version}, and nothing converts version {missing[0]}: write "
                f"`def upcast_{missing[0]}(fields)`, which returns the fields of version {missing[0] + 1}."
            )
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        schema = event_schema(type(self))
        for name, field in schema.fields.items():
            try:
                field.write(self.__dict__[name])
            except (TypeError, ValueError) as error:
                raise InvalidEvent(f"{schema.name}.{name}: {error}") from None


class EventSchema:
    """The name, version and fields of one class of events."""

    def __init__(self, kind: type[Event]) -> None:
        self.kind = kind
        self.name = kind.__name__
        self.version = kind._event_version
        self.names = (self.name, *kind._former_names)
        self.fields = _fields(kind)
        self._defaults = {field.name: field for field in dataclasses.fields(kind) if _has_default(field)}  # type: ignore[arg-type]  # a dataclass since __init_subclass__

    def write(self, event: Event) -> bytes:
        """The fields of an event as JSON."""
        values = event.__dict__
        return _compact({name: codec.write(values[name]) for name, codec in self.fields.items()}).encode()

    def read(self, value: bytes, version: int) -> Event:
        """The event of a stored value, upcast from that version to the current one."""
        try:
            written: dict[str, Any] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UnreadableEvent(f"its fields are no JSON: {error}") from error
        if not isinstance(written, dict):
            raise UnreadableEvent(f"its fields are no JSON object: {value[:80]!r}")
        fields = self.upcast(written, version)
        if fields.keys() != self.fields.keys():
            fields = self._completed(fields)
        event = self.kind.__new__(self.kind)
        # Without `__init__`: the fields were checked before they were stored.
        event.__dict__.update({name: read_with(self.fields[name], each) for name, each in fields.items()})
        return event

    def upcast(self, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """Convert the fields of an older version to the current one."""
        if version > self.version:
            raise UnknownEvent(f"an event {self.name} of version {version}{newer_event(self.version)}")
        for number in range(version, self.version):
            # Taken from the class, it is a plain function, with or without @staticmethod.
            fields = getattr(self.kind, f"upcast_{number}")(fields)
        return fields

    def _completed(self, fields: dict[str, Any]) -> dict[str, Any]:
        unknown = fields.keys() - self.fields.keys()
        missing = self.fields.keys() - fields.keys() - self._defaults.keys()
        if unknown or missing:
            problem = (
                f"has the fields {sorted(unknown)}" if unknown else f"lacks the fields {sorted(missing)}"
            )
            raise InvalidEvent(
                f"an event {self.name} in the log {problem}, unlike its class: when fields change, set "
                f"version={self.version + 1} and write upcast_{self.version}."
            )
        return {name: fields[name] if name in fields else self._default(name) for name in self.fields}

    def _default(self, name: str) -> Any:
        field = self._defaults[name]
        made = field.default
        if field.default_factory is not dataclasses.MISSING:
            made = field.default_factory()
        return self.fields[name].write(made)


def newer_event(known: int) -> str:
    """The rest of the error message for an event of a newer version than the program knows."""
    return (
        f" is in the log, and this program knows it up to version {known}: a newer program wrote it. "
        "Update this program."
    )


def event_schema(kind: type[Event]) -> EventSchema:
    """The schema of a class of events, created once."""
    schema = kind.__dict__.get("_schema")  # not one that is inherited
    if schema is None:
        schema = EventSchema(kind)
        kind._schema = schema
    return schema


def snake_case(name: str) -> str:
    """The name of an event in the name of its applier.

    >>> snake_case("CartCreated"), snake_case("SKUChanged")
    ('cart_created', 'sku_changed')
    """
    return _WORD.sub("_", name).lower()


def _fields(kind: type[Event]) -> dict[str, Codec]:
    try:
        hints = get_type_hints(kind)
        return {field.name: codec_of(hints[field.name]) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # a dataclass since __init_subclass__
    except (TypeError, NameError) as error:
        raise Misuse(
            f"the fields of the event {kind.__name__} cannot be stored: {error}. Use the types that "
            "headrace.events.codecs lists, or dataclasses of them."
        ) from error


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SPECVERSION: Final = ("ce_specversion", b"1.0")
_CONTENT_TYPE: Final = ("content-type", b"application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """An event in the log with its metadata."""

    aggregate: str
    id: str
    """The id of the aggregate."""
    version: int
    """The version of the aggregate after the event: 1 for its first."""
    type: str
    type_version: int
    time: datetime
    data: bytes
    """The fields of the event as JSON, as they were written."""
    event_id: str
    command_id: str
    causation_id: str
    correlation_id: str
    actor: str | None
    partition: int
    offset: int

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the event as JSON values."""
        found: dict[str, Any] = json.loads(self.data)
        return found

    def event(self, schema: AggregateSchema) -> Event:
        """The event, upcast to the current version of its class."""
        return schema.event(self.type).read(self.data, self.type_version)


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
    for name, value in _optional_headers(command):
        if value is not None:
            headers.append((name, value.encode()))
    return NewRecord(command.aggregate_id.encode(), data, time_ms, tuple(headers))


def read_event(
    aggregate: str,
    partition: int,
    offset: int,
    time_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
) -> RecordedEvent:
    """The event in a record; raises `UnreadableEvent` if it is none."""
    named = dict(headers)
    try:
        command_id = _text(named["ce_commandid"])
        return RecordedEvent(
            aggregate=aggregate,
            id=_text(key),
            version=int(_text(named["ce_sequence"])),
            type=_text(named["ce_type"]),
            type_version=int(_text(named["ce_dataversion"])),
            time=from_ms(time_ms),
            data=value or b"{}",
            event_id=_text(named["ce_id"]),
            command_id=command_id,
            causation_id=_text(named["ce_causationid"]) if "ce_causationid" in named else command_id,
            correlation_id=_text(named["ce_correlationid"]) if "ce_correlationid" in named else command_id,
            actor=_text(named["ce_actor"]) if "ce_actor" in named else None,
            partition=partition,
            offset=offset,
        )
    except (KeyError, ValueError, AttributeError, OverflowError) as error:
        raise UnreadableEvent(f"it is no event ({error!r}): another program wrote to the topic") from error


def recorded_in(
    aggregate: str, partition: TopicPartition, record: Record
) -> RecordedEvent | UnreadableRecords:
    """The event in a record of a partition, or the record as an unreadable one."""
    offset, time_ms, key, value, headers = record
    try:
        return read_event(aggregate, partition.partition, offset, time_ms, key, value, headers)
    except UnreadableEvent as error:
        return UnreadableRecords(partition, offset, offset, str(error), key=key)


def from_ms(time_ms: int) -> datetime:
    """The time of milliseconds since 1970."""
    return EPOCH + time_ms * _MILLISECOND


def to_ms(time: datetime) -> int:
    """Milliseconds since 1970, rounded down."""
    return (time - EPOCH) // _MILLISECOND


def time_text(time_ms: int) -> str:
    """A time in the format of CloudEvents.

    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return from_ms(time_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _optional_headers(command: Command) -> tuple[tuple[str, str | None], ...]:
    """Headers for the metadata that the caller may pass."""
    return (
        ("ce_causationid", command.causation_id or None),
        ("ce_correlationid", command.correlation_id or None),
        ("ce_actor", command.actor),
        (HEADER, command.traceparent),
    )


def _text(value: bytes | None) -> str:
    if value is None:
        raise ValueError("null")
    return value.decode()
