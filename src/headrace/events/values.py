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

A form is made once for an annotation. Values that do not fit raise `TypeError` or `ValueError`.
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

Turn = Callable[[Any], Any]


class Form(NamedTuple):
    """How values of one type are written and read."""

    write: Turn
    """What JSON holds of a value; an error when the value is of another type."""
    read: Turn | None
    """The value again; None where JSON gives it as it was."""
    sql: str
    """The type of a column of Spark's that holds it, as far as it has one of its own: else `string`."""


def form_of(annotation: Any) -> Form:
    """The form of an annotation; `TypeError` for one that has none.

    >>> form_of(list[int]).write([1, 2]), form_of(Decimal).read("1.50")
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
    return _form_of_class(annotation)


def read_with(form: Form, value: Any) -> Any:
    """The value that a form reads."""
    return value if form.read is None else form.read(value)


def utc_text(time: datetime) -> str:
    """A time as text in UTC.

    >>> utc_text(datetime(2024, 5, 1, 12, tzinfo=UTC))
    '2024-05-01T12:00:00.000000Z'
    """
    if time.tzinfo is None:
        raise ValueError(f"{time} has no time zone: give it one, such as datetime.now(UTC)")
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _as_is(kind: type) -> Turn:
    def write(value: Any) -> Any:
        if type(value) is not kind:  # True is no int here
            raise TypeError(f"{value!r} is of type {type(value).__name__}, not {kind.__name__}")
        return value

    return write


def _write_float(value: Any) -> float:
    if type(value) not in (float, int):
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not float")
    if value - value != 0:
        raise ValueError(f"{value!r} has no form in JSON")
    return float(value)


def _instance(kind: type, write: Turn) -> Turn:
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
    raise TypeError(f"{value!r} is of type {type(value).__name__}: annotate it, or give what JSON knows")


def _write_bytes(value: bytes) -> str:
    return b64encode(value).decode()


_PLAIN: Final[Mapping[Any, Form]] = {
    Any: Form(_write_any, None, "string"),
    object: Form(_write_any, None, "string"),
    None: Form(_as_is(type(None)), None, "string"),
    type(None): Form(_as_is(type(None)), None, "string"),
    str: Form(_as_is(str), None, "string"),
    int: Form(_as_is(int), None, "bigint"),
    bool: Form(_as_is(bool), None, "boolean"),
    float: Form(_write_float, float, "double"),
    datetime: Form(_instance(datetime, utc_text), datetime.fromisoformat, "timestamp"),
    date: Form(_instance(date, date.isoformat), date.fromisoformat, "date"),
    timedelta: Form(
        _instance(timedelta, timedelta.total_seconds), lambda text: timedelta(seconds=text), "double"
    ),
    Decimal: Form(_instance(Decimal, str), Decimal, "string"),
    UUID: Form(_instance(UUID, str), UUID, "string"),
    bytes: Form(_instance(bytes, _write_bytes), b64decode, "string"),
}

_MAKERS: Final[Mapping[Any, Turn]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}


def _optional(kinds: tuple[Any, ...]) -> Form:
    rest = [kind for kind in kinds if kind is not type(None)]
    if len(rest) != 1 or len(rest) == len(kinds):
        raise TypeError("a union of several types cannot be told apart in JSON; only `T | None` can")
    form = form_of(rest[0])
    read = form.read
    return Form(
        lambda value: None if value is None else form.write(value),
        None if read is None else lambda value: None if value is None else read(value),
        form.sql,
    )


def _literal(choices: tuple[Any, ...]) -> Form:
    def write(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {choices}")
        return value

    return Form(write, None, _PLAIN[type(choices[0])].sql)


def _many(kind: Any, arguments: tuple[Any, ...]) -> Form:
    if kind is tuple and arguments and (len(arguments) != 2 or arguments[1] is not ...):
        raise TypeError("a tuple is to be of any length: tuple[T, ...]; make a dataclass of others")
    element = form_of(arguments[0] if arguments else Any)
    make = _MAKERS[kind]

    def write(value: Any) -> list[Any]:
        written = [element.write(each) for each in _instance(kind, lambda each: each)(value)]
        return written if kind in (list, tuple) else sorted(written, key=repr)

    def read(value: Any) -> Any:
        return make(value if element.read is None else map(element.read, value))

    return Form(write, read, f"array<{element.sql}>")


def _dictionary(arguments: tuple[Any, ...]) -> Form:
    if arguments[0] is not str:
        raise TypeError("the keys of an object in JSON are text: dict[str, T]")
    form = form_of(arguments[1])

    def write(value: Any) -> dict[str, Any]:
        key = _PLAIN[str].write
        return {key(name): form.write(each) for name, each in _instance(dict, dict.items)(value)}

    def read(value: Any) -> dict[str, Any]:
        return {name: read_with(form, each) for name, each in value.items()}

    return Form(write, read, f"map<string,{form.sql}>")


def _form_of_class(annotation: Any) -> Form:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _enumeration(annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass(annotation)
    raise TypeError(f"{annotation!r} has no form in JSON")


def _enumeration(kind: type[enum.Enum]) -> Form:
    return Form(_instance(kind, lambda member: _write_any(member.value)), kind, "string")


def _dataclass(kind: type) -> Form:
    hints = get_type_hints(kind)
    forms = {field.name: form_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def write(value: Any) -> dict[str, Any]:
        return {name: form.write(getattr(value, name)) for name, form in forms.items()}

    columns = ",".join(f"`{name}`:{form.sql}" for name, form in forms.items())
    return Form(_instance(kind, write), partial(_read_dataclass, kind, forms), f"struct<{columns}>")


def _read_dataclass(kind: type, forms: Mapping[str, Form], value: Mapping[str, Any]) -> Any:
    return kind(**{name: read_with(forms[name], each) for name, each in value.items()})
