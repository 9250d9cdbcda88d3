"""Records as lines of text, as `produce` reads and `consume` prints them: with a format string, or JSON."""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import did_you_mean
from headrace.printable import json_text, printable_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message


Headers = list[tuple[str, str | bytes | None]]

ANY_PARTITION: Final = -1
NOW: Final = 0
"""What librdkafka takes for "the time of sending"."""

JSON_FIELDS: Final = frozenset(
    {"value", "value_base64", "key", "key_base64", "headers", "headers_base64", "partition", "timestamp"}
)
IGNORED_FIELDS: Final = frozenset({"topic", "offset"})
"""Fields that `consume --json` prints and the broker assigns to new records."""
ALL_FIELDS: Final = JSON_FIELDS | IGNORED_FIELDS


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
            headers=[*headers, *_read_headers(fields)] or None,
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
        known = ", ".join(sorted(JSON_FIELDS))
        raise MalformedLine(
            f"has an unknown field {name!r}.{did_you_mean(name, JSON_FIELDS)} The fields are {known}"
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


def _read_headers(fields: Mapping[str, Any]) -> Headers:
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


VALUES_ONLY: Final = r"%v\n"

TOKEN: Final = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


TEXT: Final = b"%s"


def _key(message: Message) -> bytes:
    return message.key() or b""


def _value(message: Message) -> bytes:
    return message.value() or b""


def _format_headers(message: Message) -> bytes:
    headers: Any = message.headers() or ()
    return b",".join(b"%s=%s" % (name.encode(), value or b"") for name, value in headers)


FORMAT_FIELDS: Final[Mapping[str, tuple[bytes, Callable[[Any], object]]]] = {
    "t": (TEXT, lambda message: message.topic().encode()),
    "p": (b"%d", lambda message: message.partition()),
    "o": (b"%d", lambda message: message.offset()),
    "k": (TEXT, _key),
    "v": (TEXT, _value),
    "h": (TEXT, _format_headers),
    "T": (b"%d", lambda message: message.timestamp()[1]),
}
"""What each letter prints. Keys and values are printed byte for byte; what is not there is empty."""


def read_format(text: str, *, for_terminal: bool = False) -> Callable[[Message], bytes]:
    r"""A function that formats a record as `text` says: `%t %p %o %k %v %h %T %%`, and `\n \t \r \0 \\ \xHH`.

    For a terminal, control characters in the record are escaped, but not those of the format itself.

    The format is compiled to one Python template, so that a record needs a single formatting operation.
    """
    template = b""
    getters: list[Callable[[Any], object]] = []
    for token in TOKEN.finditer(text):
        if token["field"] is not None and token["field"] in FORMAT_FIELDS:
            directive, getter = FORMAT_FIELDS[token["field"]]
            template += directive
            is_text = for_terminal and directive == TEXT
            getters.append(_shown(getter) if is_text else getter)
        else:
            template += _literal(token).replace(b"%", b"%%")
    return lambda message: template % tuple([getter(message) for getter in getters])


def json_line(message: Message) -> bytes:
    """A record as one line of JSON, which `produce --json` turns into the same record.

    A key or value that is not UTF-8 is in `key_base64` or `value_base64` instead of `key` or `value`, and
    likewise with headers. A header that occurs more than once has a list of values.
    """
    fields: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        **_text_or_base64("key", message.key()),
        **_text_or_base64("value", message.value()),
        **_headers_by_name(message.headers() or ()),
    }
    return json_text(fields, separators=(",", ":")).encode() + b"\n"


def _shown(getter: Callable[[Any], Any]) -> Callable[[Any], object]:
    return lambda message: printable_bytes(getter(message))


def _literal(token: re.Match[str]) -> bytes:
    """The bytes of a part of the format that is not a field."""
    field, escape = token["field"], token["escape"]
    if token["text"] is not None:
        return token["text"].encode()
    if field == "%":
        return b"%"
    if escape is not None and escape in ESCAPES:
        return ESCAPES[escape]
    if escape is not None and len(escape) == 3:
        return bytes.fromhex(escape[1:])
    raise ValueError(
        f"{token[0]!r} is not a field of a format: use %t topic, %p partition, %o offset, %k key, "
        r"%v value, %h headers, %T time in milliseconds, %%, and \n \t \r \0 \\ \xHH"
    )


def _text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content).decode()}


def _headers_by_name(headers: Any) -> dict[str, dict[str, Any]]:
    values: dict[str, list[bytes | None]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    plain: dict[str, Any] = {}
    coded: dict[str, Any] = {}
    for name, found in values.items():
        as_text = [_text_or_base64("text", value) for value in found]
        if all("text" in value for value in as_text):
            plain[name] = _one_or_many([value["text"] for value in as_text])
        else:
            coded[name] = _one_or_many(
                [None if value is None else b64encode(value).decode() for value in found]
            )
    return {"headers": plain, "headers_base64": coded} if coded else {"headers": plain}


def _one_or_many(values: list[str | None]) -> str | list[str | None] | None:
    return values[0] if len(values) == 1 else values
