"""Request bodies of hostile origin, read into kio's entities.

kio's own reader sets memory aside for as many items as an array claims, so that a frame of twenty bytes can
end the process, and refuses tagged fields that it does not know, which Kafka passes over. This one follows
the same schemas and believes no length or count that the frame does not have the bytes for.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

from kio.index import load_request_schema

from headrace.protocol.errors import ProtocolError
from headrace.protocol.messages import is_tuple, nested_schema
from headrace.protocol.wire import BOOLEAN, INT8, INT16, INT32, INT64, Cursor

if TYPE_CHECKING:
    import struct
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
    except ProtocolError as fault:
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
    read = _entity_reader(nested) if nested else _READERS[field.metadata["kafka_type"]]
    if is_tuple(hint):
        read = _array_reader(read if nested else _required(read, f"an item of {field.name}"))
    elif nested:
        return _optional(read) if is_nullable else read
    return read if is_nullable else _required(read, field.name)


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
    return lambda cursor: cursor.take(layout)[0]


def _duration(layout: struct.Struct) -> Read:
    def read(cursor: Cursor) -> timedelta:
        (milliseconds,) = cursor.take(layout)
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
