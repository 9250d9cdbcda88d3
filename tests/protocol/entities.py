"""kio's entities from plain data, and requests of every API and version with arbitrary fields."""

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from headrace.protocol.requests import is_tuple, nested_schema

INT32_MAX = 2**31 - 1

names = st.sampled_from(["orders", "cups", "", "..", "a/b", "../../etc/passwd", "nul\0", "x" * 300, "größe"])
"""Names that exist in most tests, and names that never may."""


def _edges(bits: int) -> st.SearchStrategy[int]:
    top = 2 ** (bits - 1)
    return st.sampled_from([-top, -2, -1, 0, 1, 2, 3, 5, top - 1])


def scalars(durations_ms: Sequence[int], records: Sequence[bytes]) -> Mapping[str, st.SearchStrategy[Any]]:
    """A strategy for each of Kafka's types; durations and record batches are the caller's."""
    durations = st.sampled_from(durations_ms).map(lambda ms: timedelta(milliseconds=ms))
    return {
        "bool": st.booleans(),
        "int8": _edges(8),
        "int16": _edges(16),
        "int32": _edges(32),
        "int64": _edges(64),
        "timedelta_i32": durations,
        "timedelta_i64": durations,
        "string": names,
        "bytes": st.binary(max_size=12),
        "records": st.sampled_from(records),
        "uuid": st.sampled_from([None, uuid.UUID(int=7)]),
        "error_code": st.sampled_from([ErrorCode.none, ErrorCode.invalid_request]),
        "datetime_i64": st.sampled_from([datetime.fromtimestamp(1, UTC)]),
        "float64": st.just(0.5),
        "uint16": st.integers(0, 2**16 - 1),
    }


DEFAULTS = scalars([-1, 0, 1, 100, INT32_MAX], [b"", b"no batch"])


def requests(
    api_key: int, version: int, types: Mapping[str, st.SearchStrategy[Any]] = DEFAULTS
) -> st.SearchStrategy[Any]:
    """Requests of one API and version that are well formed, whatever they ask for."""
    return _entities(load_request_schema(api_key, version), types)


def responses(api_key: int, version: int) -> st.SearchStrategy[Any]:
    """Responses of one API and version."""
    return _entities(load_response_schema(api_key, version), DEFAULTS)


def _entities(schema: type, types: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(schema)
    fields = {
        field.name: _values(field, hints[field.name], types)
        for field in dataclasses.fields(schema)
        if "tag" not in field.metadata
    }
    return st.builds(schema, **fields)


def _values(
    field: dataclasses.Field[Any], hint: Any, types: Mapping[str, st.SearchStrategy[Any]]
) -> st.SearchStrategy[Any]:
    nested = nested_schema(hint)
    values = _entities(nested, types) if nested else types[field.metadata["kafka_type"]]
    if is_tuple(hint):
        values = st.lists(values, max_size=3).map(tuple)
    if type(None) in get_args(hint):
        values = st.none() | values
    return values


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


_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "error_code": ErrorCode,
    "timedelta_i32": lambda ms: timedelta(milliseconds=ms),
    "timedelta_i64": lambda ms: timedelta(milliseconds=ms),
    "datetime_i64": lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms),
}
