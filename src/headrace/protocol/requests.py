"""Request bodies of hostile origin, read into kio's entities.

kio's own reader sets memory aside for as many items as an array claims, so that a frame of twenty bytes can
end the process, and refuses tagged fields that it does not know, which Kafka passes over. This one follows
the same schemas and believes no length or count that the frame does not have the bytes for.
"""

from __future__ import annotations

import dataclasses
import struct
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from kio.index import load_request_schema

from headrace.protocol.errors import ProtocolError
from headrace.protocol.messages import is_tuple, nested_schema
from headrace.protocol.wire import BOOLEAN, INT8, INT16, INT32, INT64, Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.protocol.messages import RequestHeader

    Read = Callable[[Cursor], Any]
    Steps = Callable[[Cursor], Generator[None, None, Any]]

STEP_ITEMS: Final = 32
"""Items of an array that are read in one step."""
NONE_TYPE: Final = type(None)


def read_request(frame: memoryview, header: RequestHeader) -> Any:
    """The request's body as kio's entity of that API and version.

    Bytes after the last field are passed over, as Apache Kafka does: librdkafka sends some.
    """
    schema = load_request_schema(header.api_key, header.version)
    try:
        return _entity_reader(schema)(Cursor(frame, header.body, flexible=schema.__flexible__))
    except (ProtocolError, struct.error) as fault:
        raise _unreadable(header, fault) from fault


def request_steps(frame: memoryview, header: RequestHeader) -> Generator[None, None, Any]:
    """The same entity; yields between two steps of the work, for requests with many items."""
    schema = load_request_schema(header.api_key, header.version)
    cursor = Cursor(frame, header.body, flexible=schema.__flexible__)
    steps = _entity_steps(schema)
    try:
        return _entity_reader(schema)(cursor) if steps is None else (yield from steps(cursor))
    except (ProtocolError, struct.error) as fault:
        raise _unreadable(header, fault) from fault


def _unreadable(header: RequestHeader, fault: Exception) -> ProtocolError:
    # A number that the frame has no bytes for is struct's error: one check less for each of them.
    return ProtocolError(f"unreadable request of API {header.api_key} v{header.version}: {fault}")


@cache
def _entity_steps(schema: type) -> Steps | None:
    """The reader of an entity in steps; None for one without arrays, which is one step."""
    hints = get_type_hints(schema)
    readers = tuple(
        (f.name, _field_reader(f, hints[f.name]), _field_steps(f, hints[f.name]))
        for f in dataclasses.fields(schema)
        if "tag" not in f.metadata
    )
    if all(steps is None for _, _, steps in readers):
        return None

    def read(cursor: Cursor) -> Generator[None, None, Any]:
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

    def read(cursor: Cursor) -> Generator[None, None, tuple[Any, ...] | None]:
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
    # Tagged fields of requests are meant for brokers in a cluster: they keep their defaults.
    readers = tuple((f.name, _field_reader(f, hints[f.name])) for f in fields if "tag" not in f.metadata)

    def read(cursor: Cursor) -> Any:
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
    """The reader of one item of an array; no item may be null."""
    nested = nested_schema(hint)
    kafka_type = field.metadata.get("kafka_type", "")
    read = _entity_reader(nested) if nested else _READERS[kafka_type]
    return _required(read, f"an item of {field.name}") if kafka_type in _NULLABLE else read


def _array_reader(item: Read) -> Read:
    def read(cursor: Cursor) -> tuple[Any, ...] | None:
        count = cursor.count()
        return None if count < 0 else tuple(item(cursor) for _ in range(count))

    return read


def _optional(entity: Read) -> Read:
    def read(cursor: Cursor) -> Any:
        (presence,) = cursor.take(INT8)
        return None if presence < 0 else entity(cursor)

    return read


def _required(read: Read, name: str) -> Read:
    def read_required(cursor: Cursor) -> Any:
        value = read(cursor)
        if value is None:
            raise ProtocolError(f"{name} is null")
        return value

    return read_required


def _number(layout: struct.Struct) -> Read:
    size, unpack = layout.size, layout.unpack_from

    def read(cursor: Cursor) -> Any:
        position = cursor.position
        cursor.position = position + size
        return unpack(cursor.frame, position)[0]

    return read


def _duration(layout: struct.Struct) -> Read:
    number = _number(layout)

    def read(cursor: Cursor) -> timedelta:
        milliseconds = number(cursor)
        try:
            return timedelta(milliseconds=milliseconds)
        except OverflowError as fault:
            raise ProtocolError(f"a duration of {milliseconds} ms") from fault

    return read


def _bytes(cursor: Cursor) -> bytes | None:
    view = cursor.blob()
    return None if view is None else bytes(view)


def _uuid(cursor: Cursor) -> Any:
    # kio's word for the id of nothing, which is sixteen zeroes, is None.
    value = cursor.uuid()
    return value if value.int else None


_NULLABLE: Final = frozenset({"string", "bytes", "records"})
_READERS: Final[Mapping[str, Read]] = {
    "bool": _number(BOOLEAN),
    "int8": _number(INT8),
    "int16": _number(INT16),
    "int32": _number(INT32),
    "int64": _number(INT64),
    "timedelta_i32": _duration(INT32),
    "timedelta_i64": _duration(INT64),
    "string": Cursor.string,
    "bytes": _bytes,
    "records": _bytes,
    "uuid": _uuid,
}
