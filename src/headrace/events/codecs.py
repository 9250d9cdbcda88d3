"""Python values as JSON and back, by the annotations of fields and parameters.

| annotation | in JSON |
|---|---|
| `str`, `int`, `float`, `bool`, `None`, `Any` | as they are |
| `datetime`, `date` | text of ISO 8601; a `datetime` has a time zone and is kept in UTC |
| `timedelta` | seconds |
| `Decimal`, `UUID` | text |
| `bytes` | text, Base64 |
| an `Enum` | its value |
| a dataclass | an object |
| `list[T]`, `tuple[T, ...]`, `set[T]`, `frozenset[T]` | an array |
| `dict[str, T]` | an object |
| `T \\| None` | `null`, or as `T` |

A codec is created once for each annotation. Values of other types raise `TypeError` or `ValueError`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

Converter = Callable[[Any], Any]


class Codec(NamedTuple):
    """Writes and reads values of one type."""

    write: Converter
    """The JSON value of a value; raises an error if it has another type."""
    read: Converter | None
    """The value of a JSON value; None if they are the same."""
    sql: str
    """The Spark type of a column with such values; `string` if Spark has none."""


def codec_of(annotation: Any) -> Codec:
    """The codec of an annotation; raises `TypeError` if it has none.

    >>> codec_of(list[int]).write([1, 2]), codec_of(Decimal).read("1.50")
    ([1, 2], Decimal('1.50'))
    """
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _optional(get_args(annotation))
    if origin is Literal:
        return _literal(get_args(annotation))
    if (origin or annotation) in _MAKERS:
        return _many(origin or annotation, get_args(annotation))
    if (origin or annotation) is dict:
        return _dictionary(get_args(annotation) or (str, Any))
    return _class_codec(annotation)


def read_with(codec: Codec, value: Any) -> Any:
    """Read a JSON value with a codec."""
    return value if codec.read is None else codec.read(value)


def utc_text(time: datetime) -> str:
    """A time as ISO 8601 text in UTC.

    >>> utc_text(datetime(2024, 5, 1, 12, tzinfo=UTC))
    '2024-05-01T12:00:00.000000Z'
    """
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: add one, as in datetime.now(UTC)")
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _as_is(kind: type) -> Converter:
    def write(value: Any) -> Any:
        if type(value) is not kind:  # True is not an int here
            raise TypeError(f"{value!r} is of type {type(value).__name__}, not {kind.__name__}")
        return value

    return write


def _write_float(value: Any) -> float:
    if type(value) not in (float, int):
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not float")
    if value - value != 0:
        raise ValueError(f"{value!r} cannot be represented in JSON")
    return float(value)


def _instance(kind: type, write: Converter) -> Converter:
    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is of type {type(value).__name__}, not {kind.__name__}")
        return write(value)

    return checked


def _write_any(value: Any) -> Any:
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return _write_float(value)
        case list() | tuple():
            return [_write_any(each) for each in value]
        case dict():
            return {_as_is(str)(key): _write_any(each) for key, each in value.items()}
    raise TypeError(f"{value!r} is of type {type(value).__name__}: annotate it, or use a JSON value")


def _write_bytes(value: bytes) -> str:
    return b64encode(value).decode()


_PLAIN: Final[Mapping[Any, Codec]] = {
    Any: Codec(_write_any, None, "string"),
    object: Codec(_write_any, None, "string"),
    None: Codec(_as_is(type(None)), None, "string"),
    type(None): Codec(_as_is(type(None)), None, "string"),
    str: Codec(_as_is(str), None, "string"),
    int: Codec(_as_is(int), None, "bigint"),
    bool: Codec(_as_is(bool), None, "boolean"),
    float: Codec(_write_float, float, "double"),
    datetime: Codec(_instance(datetime, utc_text), datetime.fromisoformat, "timestamp"),
    date: Codec(_instance(date, date.isoformat), date.fromisoformat, "date"),
    timedelta: Codec(
        _instance(timedelta, timedelta.total_seconds), lambda text: timedelta(seconds=text), "double"
    ),
    Decimal: Codec(_instance(Decimal, str), Decimal, "string"),
    UUID: Codec(_instance(UUID, str), UUID, "string"),
    bytes: Codec(_instance(bytes, _write_bytes), b64decode, "string"),
}

_MAKERS: Final[Mapping[Any, Converter]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}


def _optional(kinds: tuple[Any, ...]) -> Codec:
    rest = [kind for kind in kinds if kind is not type(None)]
    if len(rest) != 1 or len(rest) == len(kinds):
        raise TypeError("a union of several types is ambiguous in JSON; only `T | None` is supported")
    codec = codec_of(rest[0])
    read = codec.read
    return Codec(
        lambda value: None if value is None else codec.write(value),
        None if read is None else lambda value: None if value is None else read(value),
        codec.sql,
    )


def _literal(choices: tuple[Any, ...]) -> Codec:
    def write(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is not one of {choices}")
        return value

    return Codec(write, None, _PLAIN[type(choices[0])].sql)


def _many(kind: Any, arguments: tuple[Any, ...]) -> Codec:
    if kind is tuple and arguments and (len(arguments) != 2 or arguments[1] is not ...):
        raise TypeError("only tuples of any length are supported: tuple[T, ...]; use a dataclass for others")
    element = codec_of(arguments[0] if arguments else Any)
    make = _MAKERS[kind]

    def write(value: Any) -> list[Any]:
        written = [element.write(each) for each in _instance(kind, lambda each: each)(value)]
        return written if kind in (list, tuple) else sorted(written, key=repr)

    def read(value: Any) -> Any:
        return make(value if element.read is None else map(element.read, value))

    return Codec(write, read, f"array<{element.sql}>")


def _dictionary(arguments: tuple[Any, ...]) -> Codec:
    if arguments[0] is not str:
        raise TypeError("the keys of a JSON object are strings: dict[str, T]")
    codec = codec_of(arguments[1])

    def write(value: Any) -> dict[str, Any]:
        key = _PLAIN[str].write
        return {key(name): codec.write(each) for name, each in _instance(dict, dict.items)(value)}

    def read(value: Any) -> dict[str, Any]:
        return {name: read_with(codec, each) for name, each in value.items()}

    return Codec(write, read, f"map<string,{codec.sql}>")


def _class_codec(annotation: Any) -> Codec:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass(annotation)
    raise TypeError(f"{annotation!r} cannot be represented in JSON")


def _enumeration(kind: type[enum.Enum]) -> Codec:
    return Codec(_instance(kind, lambda member: _write_any(member.value)), kind, "string")


def _dataclass(kind: type) -> Codec:
    hints = get_type_hints(kind)
    codecs = {field.name: codec_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def write(value: Any) -> dict[str, Any]:
        return {name: codec.write(getattr(value, name)) for name, codec in codecs.items()}

    columns = ",".join(f"`{name}`:{codec.sql}" for name, codec in codecs.items())
    return Codec(_instance(kind, write), partial(_read_dataclass, kind, codecs), f"struct<{columns}>")


def _read_dataclass(kind: type, codecs: Mapping[str, Codec], value: Mapping[str, Any]) -> Any:
    return kind(**{name: read_with(codecs[name], each) for name, each in value.items()})
