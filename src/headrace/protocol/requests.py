"""Decodes requests into kio's entities, safely for untrusted bytes.

kio's reader allocates memory for the claimed number of items, so that a frame of twenty bytes can end the
process, and refuses unknown tagged fields, which Kafka skips. This reader uses the same schemas, and checks
all lengths and counts against the frame.
"""

from __future__ import annotations

import dataclasses
import struct
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_type_hints

from kio.index import load_request_schema

from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    FrameCursor,
    skip_tagged_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    Read = Callable[[FrameCursor], Any]
    Steps = Callable[[FrameCursor], Generator[None, None, Any]]

API_VERSIONS: Final = 18
STEP_ITEMS: Final = 32
"""Items of an array that are decoded in one step."""
NONE_TYPE: Final = type(None)

_REQUEST_HEADER = struct.Struct(">hhi")


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int
    """The position of the body in the frame."""


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of the API has compact types and tagged fields."""
    return bool(load_request_schema(api_key, version).__flexible__)


def read_request_header(frame: memoryview, flexible: Callable[[int, int], bool]) -> RequestHeader:
    """Decode the header of a request; `flexible` tells whether (api key, version) has tagged fields."""
    if len(frame) < 10:
        raise ProtocolError(f"a request of {len(frame)} bytes, and its header has at least 10")
    api_key, version, correlation_id = _REQUEST_HEADER.unpack_from(frame)
    (length,) = INT16.unpack_from(frame, 8)
    body = 10 + max(length, 0)
    if body > len(frame):
        raise ProtocolError("the client id is longer than its request")
    client_id = bytes(frame[10:body]).decode("utf-8", "replace") if length > 0 else ""
    if flexible(api_key, version):
        body = skip_tagged_fields(frame, body)
    return RequestHeader(api_key, version, correlation_id, client_id, body)


def read_request(frame: memoryview, header: RequestHeader) -> Any:
    """Decode the body of a request.

    Bytes after the last field are ignored, as in Apache Kafka: librdkafka sends some.
    """
    schema = load_request_schema(header.api_key, header.version)
    try:
        return _entity_reader(schema)(FrameCursor(frame, header.body, flexible=schema.__flexible__))
    except (ProtocolError, struct.error) as fault:
        raise _unreadable(header, fault) from fault


def request_steps(frame: memoryview, header: RequestHeader) -> Generator[None, None, Any]:
    """Decode the body of a request in steps."""
    schema = load_request_schema(header.api_key, header.version)
    cursor = FrameCursor(frame, header.body, flexible=schema.__flexible__)
    steps = _entity_steps(schema)
    try:
        return _entity_reader(schema)(cursor) if steps is None else (yield from steps(cursor))
    except (ProtocolError, struct.error) as fault:
        raise _unreadable(header, fault) from fault


def _unreadable(header: RequestHeader, fault: Exception) -> ProtocolError:
    # struct raises an error for a number beyond the end of the frame.
    return ProtocolError(f"invalid request of API {header.api_key} v{header.version}: {fault}")


def is_tuple(hint: Any) -> bool:
    """Whether the field of an entity with this type hint is an array."""
    return any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint)))


def nested_schema(hint: Any) -> type | None:
    """The entity class in a hint such as `tuple[Topic, ...] | None`, or None."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    for part in get_args(hint):
        found = nested_schema(part)
        if found is not None:
            return found
    return None


@cache
def _entity_steps(schema: type) -> Steps | None:
    """A reader of an entity in steps; None for an entity without arrays."""
    hints = get_type_hints(schema)
    readers = tuple(
        (f.name, _field_reader(f, hints[f.name]), _field_steps(f, hints[f.name]))
        for f in dataclasses.fields(schema)
        if "tag" not in f.metadata
    )
    if all(steps is None for _, _, steps in readers):
        return None

    def read(cursor: FrameCursor) -> Generator[None, None, Any]:
        values = {}
        for name, read_field, steps in readers:
            values[name] = read_field(cursor) if steps is None else (yield from steps(cursor))
        cursor.tags()
        return schema(**values)

    return read


def _field_steps(field: dataclasses.Field[Any], hint: Any) -> Steps | None:
    if not is_tuple(hint):
        return None
    item, nested = _item_reader(field, hint), nested_schema(hint)
    item_steps = _entity_steps(nested) if nested else None
    is_nullable = NONE_TYPE in get_args(hint)

    def read(cursor: FrameCursor) -> Generator[None, None, tuple[Any, ...] | None]:
        count = cursor.count()
        if count < 0:
            if not is_nullable:
                raise ProtocolError(f"{field.name} is null")
            return None
        items = []
        for number in range(1, count + 1):
            items.append(item(cursor) if item_steps is None else (yield from item_steps(cursor)))
            if not number % STEP_ITEMS:
                yield
        return tuple(items)

    return read


@cache
def _entity_reader(schema: type) -> Read:
    hints = get_type_hints(schema)
    fields = dataclasses.fields(schema)
    # Tagged fields of requests are for other brokers: they keep their defaults.
    readers = tuple((f.name, _field_reader(f, hints[f.name])) for f in fields if "tag" not in f.metadata)

    def read(cursor: FrameCursor) -> Any:
        values = {name: read_field(cursor) for name, read_field in readers}
        cursor.tags()
        return schema(**values)

    return read


def _field_reader(field: dataclasses.Field[Any], hint: Any) -> Read:
    is_nullable = NONE_TYPE in get_args(hint)
    if is_tuple(hint):
        array = _array_reader(_item_reader(field, hint))
        return array if is_nullable else _required(array, field.name)
    nested = nested_schema(hint)
    if nested:
        return _optional(_entity_reader(nested)) if is_nullable else _entity_reader(nested)
    kafka_type = field.metadata.get("kafka_type", "")
    read = _READERS[kafka_type]
    return read if is_nullable or kafka_type not in _NULLABLE else _required(read, field.name)


def _item_reader(field: dataclasses.Field[Any], hint: Any) -> Read:
    """A reader of one item of an array, which must not be null."""
    nested = nested_schema(hint)
    kafka_type = field.metadata.get("kafka_type", "")
    read = _entity_reader(nested) if nested else _READERS[kafka_type]
    return _required(read, f"an item of {field.name}") if kafka_type in _NULLABLE else read


def _array_reader(item: Read) -> Read:
    def read(cursor: FrameCursor) -> tuple[Any, ...] | None:
        count = cursor.count()
        return None if count < 0 else tuple(item(cursor) for _ in range(count))

    return read


def _optional(entity: Read) -> Read:
    def read(cursor: FrameCursor) -> Any:
        (presence,) = cursor.take(INT8)
        return None if presence < 0 else entity(cursor)

    return read


def _required(read: Read, name: str) -> Read:
    def read_required(cursor: FrameCursor) -> Any:
        value = read(cursor)
        if value is None:
            raise ProtocolError(f"{name} is null")
        return value

    return read_required


def _number(layout: struct.Struct) -> Read:
    size, unpack = layout.size, layout.unpack_from

    def read(cursor: FrameCursor) -> Any:
        position = cursor.position
        cursor.position = position + size
        return unpack(cursor.frame, position)[0]

    return read


def _duration(layout: struct.Struct) -> Read:
    number = _number(layout)

    def read(cursor: FrameCursor) -> timedelta:
        milliseconds = number(cursor)
        try:
            return timedelta(milliseconds=milliseconds)
        except OverflowError as fault:
            raise ProtocolError(f"a duration of {milliseconds} ms") from fault

    return read


def _bytes(cursor: FrameCursor) -> bytes | None:
    view = cursor.blob()
    return None if view is None else bytes(view)


def _uuid(cursor: FrameCursor) -> Any:
    # kio has None for an id of zeros.
    value = cursor.uuid()
    return value if value.int else None


_NULLABLE: Final = frozenset({"string", "bytes", "records"})
_READERS: Final[Mapping[str, Read]] = {
    "bool": _number(BOOLEAN),
    "int8": _number(INT8),
    "int16": _number(INT16),
    "int32": _number(INT32),
    "int64": _number(INT64),
    "float64": _number(FLOAT64),
    "timedelta_i32": _duration(INT32),
    "timedelta_i64": _duration(INT64),
    "string": FrameCursor.string,
    "bytes": _bytes,
    "records": _bytes,
    "uuid": _uuid,
}
