"""Converts the JSON rows of a view to Python values: `datetime`, `Decimal`, `bytes` and so on.

The types are those of the view's schema, a Spark schema in JSON. Most columns need no conversion, and have no
function.
"""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INTEGERS: Final = frozenset({"byte", "short", "integer", "long"})
FRACTIONS: Final = frozenset({"float", "double"})


class RowCodec:
    """Converts the keys and rows of one view."""

    def __init__(self, schema: Mapping[str, Any], key: Sequence[str]) -> None:
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        self._key = tuple(key)
        self._key_kinds = {name: kinds[name] for name in self._key}
        self._converts = _changing(kinds)
        self._key_converts = _changing(self._key_kinds)
        # A decimal would lose digits as a float; views without decimals keep the faster parser.
        self._parse_float = Decimal if "decimal(" in json.dumps(schema) else None

    def row(self, value: bytes) -> dict[str, Any]:
        """The row in the value of a record; raises `ValueError` if it is none."""
        row = json.loads(value, parse_float=self._parse_float)
        if not isinstance(row, dict) or any(name not in row for name in self._key):
            raise ValueError("its value is not a JSON object with the key columns")
        return _convert(row, self._converts)

    def key_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The key of a row."""
        return {name: row[name] for name in self._key}

    def key(self, key: bytes) -> dict[str, Any]:
        """The key in the key of a record: a JSON object, or the text of the only column."""
        if len(self._key) == 1 and not _is_null_key(key, self._key[0]):
            (kind,) = self._key_kinds.values()
            return {self._key[0]: from_text(key, kind)}
        document = json.loads(key, parse_float=self._parse_float)
        if not isinstance(document, dict):
            raise TypeError("its key is not a JSON object")
        return _convert(document, self._key_converts)


def to_json(value: Any) -> Any:
    """The JSON value of other types; for `json.dumps(default=…)`."""
    match value:
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            from base64 import b64encode

            return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def from_text(text: bytes, kind: Any) -> Any:
    """The value of the only key column, from the text of Spark's cast to string."""
    if kind == "binary":
        return text
    if isinstance(kind, dict):
        return _of_kind(json.loads(text), kind)
    word = text.decode()
    if kind in INTEGERS:
        return int(word)
    if kind == "boolean":
        return word == "true"
    return _of_kind(word, kind)


def _is_null_key(key: bytes, name: str) -> bool:
    if not key.startswith(b"{"):
        return False
    try:
        return bool(json.loads(key) == {name: None})
    except ValueError:
        return False


def _convert(row: dict[str, Any], converts: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    for name, convert in converts.items():
        value = row.get(name)
        if value is not None:
            row[name] = convert(value)
    return row


def _changing(kinds: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    return {name: convert for name, kind in kinds.items() if (convert := converter(kind)) is not None}


def _of_kind(value: Any, kind: Any) -> Any:
    convert = converter(kind)
    return value if convert is None else convert(value)


def converter(kind: Any) -> Callable[[Any], Any] | None:
    """The function that converts a value that is not null; None if none is needed."""
    if isinstance(kind, dict):
        return _nested(kind)
    if kind in FRACTIONS:
        return float  # also of "NaN" and "Infinity", which are texts in JSON
    if kind.startswith("decimal"):
        return lambda value: Decimal(str(value))
    return SCALARS.get(kind)


def _nested(kind: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    match kind["type"]:
        case "struct":
            converts = _changing({field["name"]: field["type"] for field in kind["fields"]})
            return (lambda value: _convert(value, converts)) if converts else None
        case "array":
            each = converter(kind["elementType"])
            return None if each is None else lambda value: [_maybe(each, item) for item in value]
        case "map":
            of_key, each = kind["keyType"], converter(kind["valueType"])
            return lambda value: {
                from_text(name.encode(), of_key): _maybe(each, item) for name, item in value.items()
            }
    return None


def _maybe(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _timestamp(text: str) -> datetime | str:
    """A time with its zone; a time after the year 9999, which Python cannot represent, stays text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _local_time(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _date(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timestamp": _timestamp,
    "timestamp_ntz": _local_time,
    "date": _date,
    "binary": b64decode,
}
