"""Parses input lines as records: values, keys and values, or JSON."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Headers = list[tuple[str, str | bytes | None]]

ANY_PARTITION: Final = -1
NOW: Final = 0
"""What librdkafka takes for "the time of sending"."""

FIELDS: Final = frozenset(
    {"value", "value_base64", "key", "key_base64", "headers", "headers_base64", "partition", "timestamp"}
)
IGNORED_FIELDS: Final = frozenset({"topic", "offset"})
"""Fields that `consume --json` prints and the broker assigns to new records."""
ALL_FIELDS: Final = FIELDS | IGNORED_FIELDS


class MalformedLine(ValueError):
    """A line that is not a record. The message is the reason, and is appended to "line 7"."""


class InputRecord(NamedTuple):
    """A record to send. A tuple, because there is one for every input line."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = ANY_PARTITION
    timestamp_ms: int = NOW


def plain_lines(
    *, key: bytes | None, separator: bytes | None, headers: Headers, partition: int
) -> Callable[[bytes], InputRecord]:
    """A parser of lines that are values or, with a separator, keys and values."""
    same = headers or None

    def read(line: bytes) -> InputRecord:
        return InputRecord(line, key, same, partition)

    def read_with_key(line: bytes) -> InputRecord:
        found, between, value = line.partition(separator or b"")
        if not between:
            raise MalformedLine(f"has no {(separator or b'').decode()!r} between a key and a value")
        return InputRecord(value, found, same, partition)

    return read_with_key if separator else read


def json_lines(*, headers: Headers, partition: int) -> Callable[[bytes], InputRecord]:
    """A parser of lines that are JSON objects; the arguments are defaults for missing fields."""

    def read(line: bytes) -> InputRecord:
        fields = _object(line)
        return InputRecord(
            value=_content(fields, "value"),
            key=_content(fields, "key") if "key" in fields or "key_base64" in fields else None,
            headers=[*headers, *_headers(fields)] or None,
            partition=_natural(fields.get("partition", partition), "partition", least=ANY_PARTITION),
            timestamp_ms=_timestamp_ms(fields.get("timestamp", NOW)),
        )

    return read


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as fault:
        raise MalformedLine(f"is not JSON: {fault.msg} (column {fault.colno})") from fault
    except UnicodeDecodeError as fault:
        raise MalformedLine(f"is not JSON, for it is not UTF-8 (byte {fault.start})") from fault
    if not isinstance(fields, dict):
        raise MalformedLine('is not a JSON object: write {"value": …}')
    if not fields.keys() <= ALL_FIELDS:
        name = min(fields.keys() - ALL_FIELDS)
        known = ", ".join(sorted(FIELDS))
        raise MalformedLine(
            f"has an unknown field {name!r}.{did_you_mean(name, FIELDS)} The fields are {known}"
        )
    return fields


def _content(fields: Mapping[str, Any], name: str) -> bytes | None:
    """The bytes of a key or value: text is encoded as it is, other JSON as JSON, base64 is decoded."""
    coded = f"{name}_base64"
    if name in fields and coded in fields:
        raise MalformedLine(f"has both {name!r} and {coded!r}: one of them is enough")
    if coded in fields:
        return _decoded(fields[coded], coded)
    if name not in fields:
        raise MalformedLine(f"has no {name!r}: write null for a record without one, which deletes its key")
    content = fields[name]
    if content is None:
        return None
    text = (
        content
        if isinstance(content, str)
        else json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    )
    return _encoded(text, name)


def _headers(fields: Mapping[str, Any]) -> Headers:
    """Headers from `{"name": "value"}`; a name that occurs more than once has a list of values."""
    plain: Headers = [(name, _header_text(value, name)) for name, value in _pairs(fields, "headers")]
    coded: Headers = [
        (name, _decoded(value, f"header {name}")) for name, value in _pairs(fields, "headers_base64")
    ]
    return plain + coded


def _pairs(fields: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    named = fields.get(name, {})
    if not isinstance(named, dict):
        raise MalformedLine(f'has {name!r} that are not an object: write {{"name": "value"}}')
    return [
        (header, value)
        for header, values in named.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def _header_text(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise MalformedLine(f"has a header {name!r} that is not text")
    return _encoded(value, f"header {name}")


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as fault:
        raise MalformedLine(f"has a {name!r} that is not Unicode: {fault.reason}") from fault


def _decoded(text: Any, name: str) -> bytes | None:
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as fault:
        raise MalformedLine(f"has a {name!r} that is not base64: {fault}") from fault


def _natural(value: Any, name: str, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
        raise MalformedLine(f"has a {name!r} that is not a whole number: {value!r}")
    return value


def _timestamp_ms(value: Any) -> int:
    if not isinstance(value, str):
        return _natural(value, "timestamp")
    try:
        return int(datetime.fromisoformat(value).timestamp() * 1000)
    except ValueError as fault:
        raise MalformedLine(
            f"has a 'timestamp' that is neither milliseconds nor an ISO time: {fault}"
        ) from fault
