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
    from collections.abc import Callable, Mapping

    from headrace.protocol.messages import RequestHeader

    Read = Callable[[Cursor], Any]

NONE_TYPE: Final = type(None)


def read_request(frame: memoryview, header: RequestHeader) -> Any:
    """The request's body as kio's entity of that API and version.

    Bytes after the last field are passed over, as Apache Kafka does: librdkafka sends some.
    """
    schema = load_request_schema(header.api_key, header.version)
    try:
        return _entity_reader(schema)(Cursor(frame, header.body, flexible=schema.__flexible__))
    except (ProtocolError, struct.error) as fault:
        # A number that the frame has no bytes for is struct's error: one check less for each of them.
        raise ProtocolError(
            f"unreadable request of API {header.api_key} v{header.version}: {fault}"
        ) from fault


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
    nested = nested_schema(hint)
    kafka_type = field.metadata.get("kafka_type", "")
    read = _entity_reader(nested) if nested else _READERS[kafka_type]
    if is_tuple(hint):
        items = _required(read, f"an item of {field.name}") if kafka_type in _NULLABLE else read
        return _array_reader(items) if is_nullable else _required(_array_reader(items), field.name)
    if nested:
        return _optional(read) if is_nullable else read
    return read if is_nullable or kafka_type not in _NULLABLE else _required(read, field.name)


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
