"""Kafka's messages as plain data: the headers of requests, and kio's entities made from dictionaries.

Times are milliseconds and error codes are integers on our side; kio's own types begin and end here.
"""

from __future__ import annotations

import dataclasses
import struct
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args, get_type_hints

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from headrace.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

API_VERSIONS: Final = 18
MAX_TAGGED_FIELDS: Final = 100
"""Tagged fields that are passed over in one place; Kafka's messages have fewer than ten of them."""

_REQUEST_HEADER = struct.Struct(">hhi")
_SHORT = struct.Struct(">h")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RequestHeader(NamedTuple):
    """Who asks for what: the first bytes of every request."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int
    """Where the body begins in the frame."""


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version of the API uses compact types and tagged fields."""
    return bool(load_request_schema(api_key, version).__flexible__)


def read_request_header(frame: memoryview, flexible: Callable[[int, int], bool]) -> RequestHeader:
    """The header of the request in `frame`; `flexible` says which (api key, version) has tagged fields."""
    if len(frame) < 10:
        raise ProtocolError(f"a request of {len(frame)} bytes: its header alone takes 10")
    api_key, version, correlation_id = _REQUEST_HEADER.unpack_from(frame)
    (length,) = _SHORT.unpack_from(frame, 8)
    body = 10 + max(length, 0)
    if body > len(frame):
        raise ProtocolError("the client id is longer than its request")
    client_id = bytes(frame[10:body]).decode("utf-8", "replace") if length > 0 else ""
    if flexible(api_key, version):
        body = skip_tagged_fields(frame, body)
    return RequestHeader(api_key, version, correlation_id, client_id, body)


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position`, and where it ends; at most five bytes."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            raise ProtocolError("the request ends inside a number")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ProtocolError("a number of more than five bytes")


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """Where the bytes after a section of tagged fields begin."""
    if position < len(frame) and frame[position] == 0:
        return position + 1
    count, position = read_unsigned_varint(frame, position)
    if count > MAX_TAGGED_FIELDS:
        raise ProtocolError(
            f"{count} tagged fields in one place: at most {MAX_TAGGED_FIELDS} are passed over"
        )
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise ProtocolError("a tagged field is longer than its request")
    return position


def build(schema: type, body: Mapping[str, Any]) -> Any:
    """An entity of `schema` from plain data; fields that this version does not have are left out."""
    values = {}
    for name, convert, required in _shape(schema):
        if name in body:
            value = body[name]
            values[name] = value if value is None else convert(value)
        elif name == "throttle_time":
            values[name] = timedelta(0)
        elif required:
            raise KeyError(f"{schema.__name__} needs the field {name!r}")
    return schema(**values)


@cache
def _shape(schema: type) -> tuple[tuple[str, Callable[[Any], Any], bool], ...]:
    hints = get_type_hints(schema)
    return tuple(
        (field.name, _converter(field, hints[field.name]), field.default is dataclasses.MISSING)
        for field in dataclasses.fields(schema)
    )


def _converter(field: dataclasses.Field[Any], hint: Any) -> Callable[[Any], Any]:
    kafka_type = field.metadata.get("kafka_type")
    nested = nested_schema(hint)
    if nested is not None and is_tuple(hint):
        return lambda items: tuple(build(nested, item) for item in items)
    if nested is not None:
        return lambda item: build(nested, item)
    if is_tuple(hint):
        return tuple
    return _CONVERTERS.get(kafka_type or "", _unchanged)


def _unchanged(value: Any) -> Any:
    return value


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda ms: timedelta(milliseconds=ms),
    "timedelta_i64": lambda ms: timedelta(milliseconds=ms),
    "datetime_i64": lambda ms: _EPOCH + timedelta(milliseconds=ms),
}


def is_tuple(hint: Any) -> bool:
    """Whether the field of an entity with this type hint is an array."""
    return any(getattr(part, "__origin__", None) is tuple for part in (hint, *get_args(hint)))


def nested_schema(hint: Any) -> type | None:
    """The entity class inside a hint such as `tuple[Topic, ...] | None`, if there is one."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint
    for part in get_args(hint):
        found = nested_schema(part)
        if found is not None:
            return found
    return None
