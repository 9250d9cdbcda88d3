"""Converters from PostgreSQL's text format to JSON.

The connection requests ISO dates, times in UTC, ISO 8601 intervals and hexadecimal bytea, so that most types
are their text in quotes. `None` as a converter means that the text is valid JSON.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Final

Converter = Callable[[bytes], bytes]

_SPECIAL: Final = re.compile(rb'[\x00-\x1f"\\]').search
TIMESTAMP: Final = rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)"
"""The pattern of a timestamp without zone."""
UTC: Final = rb"\+00"
_TIMESTAMP: Final = re.compile(TIMESTAMP).fullmatch
_TIMESTAMPTZ: Final = re.compile(TIMESTAMP + UTC).fullmatch

SETTINGS: Final = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
}
"""The session settings that the converters expect."""


def text(value: bytes) -> bytes:
    """A text as a JSON string.

    >>> text(b'Anna'), text(b'5" nails')
    (b'"Anna"', b'"5\\\\" nails"')
    """
    if _SPECIAL(value) is None:
        return b'"%b"' % value
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False).encode()


def boolean(value: bytes) -> bytes:
    """A boolean."""
    return b"true" if value == b"t" else b"false"


def floating(value: bytes) -> bytes:
    """A floating-point number; NaN and infinities, which JSON lacks, as strings."""
    return value if value[-1] <= 0x39 else b'"%b"' % value


def timestamp(value: bytes) -> bytes:
    """A timestamp without zone as ISO 8601; infinity and years BC in PostgreSQL's format.

    >>> timestamp(b"2026-01-02 03:04:05.5"), timestamp(b"infinity")
    (b'"2026-01-02T03:04:05.5"', b'"infinity"')
    """
    found = _TIMESTAMP(value)
    return b'"%b"' % value if found is None else b'"%bT%b"' % found.groups()


def timestamptz(value: bytes) -> bytes:
    """A timestamp with zone as ISO 8601 in UTC.

    >>> timestamptz(b"2026-01-02 03:04:05+00")
    b'"2026-01-02T03:04:05Z"'
    """
    found = _TIMESTAMPTZ(value)
    return b'"%b"' % value if found is None else b'"%bT%bZ"' % found.groups()


def money(value: bytes) -> bytes:
    """An amount of money as an exact decimal string, without the currency symbol.

    >>> money(b"-$1,234.50")
    b'"-1234.50"'
    """
    return b'"%b"' % value.translate(None, b"$,")


def bytea(value: bytes) -> bytes:
    r"""Bytes as base64.

    >>> bytea(rb"\x0001ff")
    b'"AAH/"'
    """
    return b'"%b"' % b64encode(bytes.fromhex(value[2:].decode()))


BUILT_IN: Final[dict[int, Converter | None]] = {
    16: boolean,
    17: bytea,
    18: text,
    20: None,  # int8
    21: None,  # int2
    23: None,  # int4
    26: None,  # oid
    700: floating,
    790: money,
    701: floating,
    1082: text,  # date
    1083: text,  # time
    1114: timestamp,
    1184: timestamptz,
    1186: text,  # interval
    1266: text,  # time with zone
    1700: text,  # numeric: a JSON number would lose precision in most readers
    2950: text,  # uuid
}
"""Converters by type OID. Other types are looked up in the catalog, and are text by default."""


def array(element: Converter | None, delimiter: bytes) -> Converter:
    """A converter for arrays with the given converter of elements.

    >>> array(None, b",")(b"{1,NULL,3}"), array(text, b",")(b'{{a,"b c"},{"",d}}')
    (b'[1,null,3]', b'[["a","b c"],["","d"]]')
    """
    # A quoted element, an unquoted element, or a delimiter.
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}%b"]+)|([{}%b])' % (delimiter, delimiter), re.DOTALL)

    def convert(value: bytes) -> bytes:
        start = value.find(b"{")  # lower bounds other than 1 precede it
        if start < 0:
            return text(value)  # int2vector and oidvector have another format
        return b"".join(_pieces(token, value, start, element))

    return convert


_SIGNS: Final = {b"{": b"[", b"}": b"]"}


def _pieces(token: re.Pattern[bytes], value: bytes, start: int, element: Converter | None) -> list[bytes]:
    pieces = []
    for quoted, bare, sign in (found.groups() for found in token.finditer(value, start)):
        if sign is not None:
            pieces.append(_SIGNS.get(sign, b","))
        elif bare == b"NULL":
            pieces.append(b"null")
        else:
            plain = bare if bare is not None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL)
            pieces.append(plain if element is None else element(plain))
    return pieces
