"""The state of an aggregate as JSON and back, for snapshots.

Attributes that the class annotates are kept by their types. Others are kept by what they are: what JSON
knows, and tuples, sets, dicts with any keys, times, decimals, UUIDs and bytes, each of which is read again as
what it was. What would come back as something else is refused, and with it the snapshot: state is never
guessed.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.events.aggregate import OWN
from headrace.events.errors import Unkeepable
from headrace.events.values import read_with

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.events.aggregate import Aggregate, AggregateForm

TAG: Final = "$"
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def write_state(form: AggregateForm, aggregate: Aggregate) -> bytes:
    """The attributes of an aggregate as JSON, or `Unkeepable`."""
    return _dumps(plain_state(form, aggregate)).encode()


def plain_state(form: AggregateForm, aggregate: Aggregate) -> dict[str, Any]:
    """The attributes of an aggregate as JSON has them, or `Unkeepable`."""
    state = {}
    for name, value in vars(aggregate).items():
        if name in OWN:
            continue
        try:
            state[name] = form.state[name].write(value) if name in form.state else _write(value)
        except (TypeError, ValueError) as fault:
            raise Unkeepable(
                f"no snapshot can be made of {form.name}.{name}: {fault}. Use types that "
                f"headrace.events.state names, or annotate the attribute in the class: "
                f"`{name}: dict[str, Line]`."
            ) from None
    return state


def read_state(form: AggregateForm, key: str, version: int, state: bytes) -> Aggregate:
    """An aggregate with the attributes that were written."""
    aggregate = form.kind.__new__(form.kind)
    for name, value in json.loads(state).items():
        setattr(aggregate, name, read_with(form.state[name], value) if name in form.state else _read(value))
    aggregate.id, aggregate.version = key, version
    return aggregate


def _write(value: Any) -> Any:
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is list:
        return [_write(each) for each in value]
    if kind is dict:
        return _write_dict(value)
    if kind in _TAGGED:
        return {TAG: kind.__name__, "is": _TAGGED[kind][0](value)}
    raise TypeError(f"{value!r} is of type {kind.__name__}")


def _write_dict(value: dict[Any, Any]) -> dict[str, Any]:
    if TAG not in value and all(type(key) is str for key in value):
        return {key: _write(each) for key, each in value.items()}
    return {TAG: "dict", "is": [[_write(key), _write(each)] for key, each in value.items()]}


def _read(value: Any) -> Any:
    if type(value) is list:
        return [_read(each) for each in value]
    if type(value) is not dict:
        return value
    if TAG not in value:
        return {key: _read(each) for key, each in value.items()}
    return _READERS[value[TAG]](value["is"])


def _write_each(value: Any) -> list[Any]:
    return [_write(each) for each in value]


_AS_IT_IS: Final = frozenset({str, int, float, bool, type(None)})
_TAGGED: Final[Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    tuple: (_write_each, lambda value: tuple(map(_read, value))),
    set: (_write_each, lambda value: set(map(_read, value))),
    frozenset: (_write_each, lambda value: frozenset(map(_read, value))),
    datetime: (datetime.isoformat, datetime.fromisoformat),
    date: (date.isoformat, date.fromisoformat),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda value: timedelta(*value),
    ),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    bytes: (lambda value: b64encode(value).decode(), b64decode),
}
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **{kind.__name__: read for kind, (_, read) in _TAGGED.items()},
    "dict": lambda value: {_read(key): _read(each) for key, each in value},
}
