"""Formats records as lines of text: with a format string, or as JSON."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TYPE_CHECKING, Any, Final

from headrace.printable import json_text, printable_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import Message

VALUES_ONLY: Final = r"%v\n"

TOKEN: Final = re.compile(r"%(?P<field>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


TEXT: Final = b"%s"


def _key(message: Message) -> bytes:
    return message.key() or b""


def _value(message: Message) -> bytes:
    return message.value() or b""


def _headers(message: Message) -> bytes:
    headers: Any = message.headers() or ()
    return b",".join(b"%s=%s" % (name.encode(), value or b"") for name, value in headers)


FIELDS: Final[Mapping[str, tuple[bytes, Callable[[Any], object]]]] = {
    "t": (TEXT, lambda message: message.topic().encode()),
    "p": (b"%d", lambda message: message.partition()),
    "o": (b"%d", lambda message: message.offset()),
    "k": (TEXT, _key),
    "v": (TEXT, _value),
    "h": (TEXT, _headers),
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
        if token["field"] is not None and token["field"] in FIELDS:
            directive, getter = FIELDS[token["field"]]
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
        f"{token[0]!r} means nothing in a format: there are %t topic, %p partition, %o offset, %k key, "
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
