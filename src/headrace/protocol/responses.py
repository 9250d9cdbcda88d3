"""Encodes responses from dictionaries, for every version of an API.

A handler returns a mapping with the field names of the newest version, and the encoder of the requested
version uses those that it has. Times are milliseconds, and error codes are integers. The bytes are those that
kio writes, but they are written without kio's entities, and in steps, so that a large response does not block
the event loop.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from kio.index import load_response_schema

from headrace.protocol.errors import ProtocolError
from headrace.protocol.requests import API_VERSIONS, is_flexible, is_tuple, nested_schema
from headrace.protocol.wire import (
    BOOLEAN,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    pack_unsigned_varint,
    run_steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Mapping
    from uuid import UUID

    Write = Callable[[bytearray, Any], None]
    WriteSteps = Callable[[bytearray, Any], Generator[None, None, None]]

MAX_RESPONSE_BYTES: Final = 32 * 2**20
"""The largest response."""
STEP_ITEMS: Final = 32
"""Items of an array that are encoded in one step."""

_MISSING: Final = object()
_NO_TOPIC_ID: Final = bytes(16)


class LazyArray:
    """An array of a response whose items are created while they are encoded."""

    def __init__(self, sources: Collection[Any], make: Callable[[Any], Mapping[str, Any]]) -> None:
        self._sources = sources
        self._make = make

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self._make, self._sources)


def write_response(api_key: int, version: int, correlation_id: int, body: Mapping[str, Any]) -> bytes:
    """Encode a response, including its length prefix."""
    return run_steps(response_steps(api_key, version, correlation_id, body))


def response_steps(
    api_key: int, version: int, correlation_id: int, body: Mapping[str, Any]
) -> Generator[None, None, bytes]:
    """Encode a response in steps."""
    out = bytearray(4)
    out += INT32.pack(correlation_id)
    # The header of an ApiVersions response has no tagged fields: the client does not know the versions yet.
    if is_flexible(api_key, version) and api_key != API_VERSIONS:
        out.append(0)
    for _ in _entity_steps(load_response_schema(api_key, version))(out, body):
        if len(out) > MAX_RESPONSE_BYTES:
            raise ProtocolError(
                f"the response to API {api_key} takes more than {MAX_RESPONSE_BYTES} bytes: ask for less"
            )
        yield
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


@cache
def _entity_steps(schema: Any) -> WriteSteps:
    fields = _fields(schema)
    end = _tag_writer(schema)

    def write(out: bytearray, body: Mapping[str, Any]) -> Generator[None, None, None]:
        for name, default, write_field, write_steps in fields:
            value = body.get(name, default)
            if value is _MISSING:
                raise KeyError(f"{schema.__name__} needs the field {name!r}")
            if write_steps is None:
                write_field(out, value)
            else:
                yield from write_steps(out, value)
        end(out, body)

    return write


@cache
def _entity_writer(schema: Any) -> Write:
    """A writer of an entity without arrays of entities, in one step."""
    fields = [(name, default, write) for name, default, write, _ in _fields(schema)]
    end = _tag_writer(schema)

    def write(out: bytearray, body: Mapping[str, Any]) -> None:
        for name, default, write_field in fields:
            value = body.get(name, default)
            if value is _MISSING:
                raise KeyError(f"{schema.__name__} needs the field {name!r}")
            write_field(out, value)
        end(out, body)

    return write


Field = tuple[str, Any, "Write", "WriteSteps | None"]


@cache
def _fields(schema: Any) -> tuple[Field, ...]:
    hints = get_type_hints(schema)
    return tuple(
        (field.name, _default(field), *_field_writers(schema, field, hints[field.name]))
        for field in dataclasses.fields(schema)
        if "tag" not in field.metadata
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.name == "throttle_time":
        return 0
    if field.default is dataclasses.MISSING:
        return _MISSING
    return _plain(field.default)


def _plain(value: Any) -> Any:
    """A default of kio in the form that handlers use."""
    if hasattr(value, "total_seconds"):
        return round(value.total_seconds() * 1000)
    return int(value) if hasattr(value, "retriable") else value


def _field_writers(
    schema: Any, field: dataclasses.Field[Any], hint: Any, *, is_tagged: bool = False
) -> tuple[Write, WriteSteps | None]:
    """The writer of a field, and its writer in steps if it has an array of entities."""
    flexible = bool(schema.__flexible__)
    is_nullable = type(None) in get_args(hint) and not is_tagged
    nested = nested_schema(hint)
    if is_tuple(hint):
        if nested is None:
            return _array_writer(_primitive(field, flexible=flexible), flexible=flexible), None
        return _unusable, _array_steps(nested, flexible=flexible)
    if nested is not None:
        return _nested_writers(nested, is_nullable=is_nullable)
    return _primitive(field, flexible=flexible), None


def _nested_writers(schema: Any, *, is_nullable: bool) -> tuple[Write, WriteSteps | None]:
    if _has_steps(schema):
        steps = _entity_steps(schema)
        return _unusable, _nullable_steps(steps) if is_nullable else steps
    write = _entity_writer(schema)
    return (_nullable(write) if is_nullable else write), None


def _has_steps(schema: Any) -> bool:
    return any(steps is not None for _, _, _, steps in _fields(schema))


def _unusable(_out: bytearray, _value: Any) -> None:
    raise TypeError("an array of entities is written in steps")


def _primitive(field: dataclasses.Field[Any], *, flexible: bool) -> Write:
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in _NUMBERS:
        return _number_writer(_NUMBERS[kafka_type])
    if kafka_type == "uuid":
        return _write_uuid
    if kafka_type == "datetime_i64":
        return _write_time
    if kafka_type == "string":
        return _write_compact_string if flexible else _write_string
    return _write_compact_bytes if flexible else _write_bytes


def _number_writer(layout: struct.Struct) -> Write:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_time(out: bytearray, value: int | None) -> None:
    out += INT64.pack(-1 if value is None else value)


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += _NO_TOPIC_ID if value is None else value.bytes


def _write_compact_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(0)
        return
    out += pack_unsigned_varint(len(value) + 1)
    out += value


def _write_compact_string(out: bytearray, value: str | None) -> None:
    _write_compact_bytes(out, None if value is None else value.encode())


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    out += INT32.pack(-1 if value is None else len(value))
    out += value or b""


def _write_string(out: bytearray, value: str | None) -> None:
    data = b"" if value is None else value.encode()
    out += INT16.pack(-1 if value is None else len(data))
    out += data


def _nullable(write: Write) -> Write:
    def write_nullable(out: bytearray, value: Any) -> None:
        out += INT8.pack(-1 if value is None else 1)
        if value is not None:
            write(out, value)

    return write_nullable


def _nullable_steps(write: WriteSteps) -> WriteSteps:
    def write_nullable(out: bytearray, value: Any) -> Generator[None, None, None]:
        out += INT8.pack(-1 if value is None else 1)
        if value is not None:
            yield from write(out, value)

    return write_nullable


def _write_count(out: bytearray, items: Any, *, flexible: bool) -> None:
    count = -1 if items is None else len(items)
    out += pack_unsigned_varint(count + 1) if flexible else INT32.pack(count)


def _array_writer(item: Write, *, flexible: bool) -> Write:
    def write(out: bytearray, items: Any) -> None:
        _write_count(out, items, flexible=flexible)
        for value in items or ():
            item(out, value)

    return write


def _array_steps(schema: Any, *, flexible: bool) -> WriteSteps:
    if _has_steps(schema):
        return _deep_array_steps(_entity_steps(schema), flexible=flexible)
    return _flat_array_steps(_entity_writer(schema), flexible=flexible)


def _flat_array_steps(write_item: Write, *, flexible: bool) -> WriteSteps:
    def write(out: bytearray, items: Any) -> Generator[None, None, None]:
        _write_count(out, items, flexible=flexible)
        for number, item in enumerate(items or (), 1):
            write_item(out, item)
            if not number % STEP_ITEMS:
                yield

    return write


def _deep_array_steps(item_steps: WriteSteps, *, flexible: bool) -> WriteSteps:
    def write(out: bytearray, items: Any) -> Generator[None, None, None]:
        _write_count(out, items, flexible=flexible)
        for item in items or ():
            yield from item_steps(out, item)
            yield

    return write


def _tag_writer(schema: Any) -> Write:
    """A writer of the tagged fields that are set."""
    if not schema.__flexible__:
        return _write_nothing
    tagged = _tagged_fields(schema)
    if not tagged:
        return _write_no_tags

    def write(out: bytearray, body: Mapping[str, Any]) -> None:
        present = [
            (tag, pack(body[name])) for tag, name, default, pack in tagged if _is_set(body, name, default)
        ]
        out += pack_unsigned_varint(len(present))
        for tag, data in present:
            out += pack_unsigned_varint(tag) + pack_unsigned_varint(len(data)) + data

    return write


def _is_set(body: Mapping[str, Any], name: str, default: Any) -> bool:
    value = body.get(name, default)
    return bool(value != default and (value or not isinstance(value, tuple | list)))


def _tagged_fields(schema: Any) -> list[tuple[int, str, Any, Callable[[Any], bytes]]]:
    hints = get_type_hints(schema)
    tagged = [field for field in dataclasses.fields(schema) if "tag" in field.metadata]
    return [
        (field.metadata["tag"], field.name, _default(field), _tag_packer(schema, field, hints[field.name]))
        for field in sorted(tagged, key=lambda field: int(field.metadata["tag"]))
    ]


def _tag_packer(schema: Any, field: dataclasses.Field[Any], hint: Any) -> Callable[[Any], bytes]:
    write, steps = _field_writers(schema, field, hint, is_tagged=True)

    def pack(value: Any) -> bytes:
        out = bytearray()
        if steps is None:
            write(out, value)
        else:
            for _ in steps(out, value):
                pass
        return bytes(out)

    return pack


def _write_nothing(_out: bytearray, _body: Mapping[str, Any]) -> None:
    pass


def _write_no_tags(out: bytearray, _body: Mapping[str, Any]) -> None:
    out.append(0)


_NUMBERS: Final[Mapping[str, struct.Struct]] = {
    "bool": BOOLEAN,
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "uint16": struct.Struct(">H"),
    "uint32": struct.Struct(">I"),
    "float64": FLOAT64,
    "error_code": INT16,
    "timedelta_i32": INT32,
    "timedelta_i64": INT64,
}
