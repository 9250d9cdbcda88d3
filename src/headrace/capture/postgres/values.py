"""Values of PostgreSQL's types, from the text that it sends to JSON.

The connection asks for dates in ISO form, times in UTC, intervals as ISO 8601 and bytes in hexadecimal, so
most types are their text in quotes. `None` as a converter means that the text is JSON as it is.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Final

Convert = Callable[[bytes], bytes]

_SPECIAL: Final = re.compile(rb'[\x00-\x1f"\\]').search
MOMENT: Final = rb"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)"
"""The pattern of a day and a time."""
UTC: Final = rb"\+00"
_MOMENT: Final = re.compile(MOMENT).fullmatch
_ZONED: Final = re.compile(MOMENT + UTC).fullmatch

SETTINGS: Final = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
}
"""What a connection has to ask for, so that values look as they are expected here."""


def text(value: bytes) -> bytes:
    """A text as a JSON string.

    >>> text(b'Anna'), text(b'5" nails')
    (b'"Anna"', b'"5\\\\" nails"')
    """
    if _SPECIAL(value) is None:
        return b'"%b"' % value
    return json.dumps(value.decode(errors="replace"), ensure_ascii=False).encode()


def boolean(value: bytes) -> bytes:
    """True or false."""
    return b"true" if value == b"t" else b"false"


def fraction(value: bytes) -> bytes:
    """A floating-point number; NaN and the infinities, which JSON does not know, in quotes."""
    return value if value[-1] <= 0x39 else b'"%b"' % value


def moment(value: bytes) -> bytes:
    """A time without zone as ISO 8601; infinity and years before Christ as PostgreSQL writes them.

    >>> moment(b"2026-01-02 03:04:05.5"), moment(b"infinity")
    (b'"2026-01-02T03:04:05.5"', b'"infinity"')
    """
    found = _MOMENT(value)
    return b'"%b"' % value if found is None else b'"%bT%b"' % found.groups()


def zoned_moment(value: bytes) -> bytes:
    """A time in UTC as ISO 8601.

    >>> zoned_moment(b"2026-01-02 03:04:05+00")
    b'"2026-01-02T03:04:05Z"'
    """
    found = _ZONED(value)
    return b'"%b"' % value if found is None else b'"%bT%bZ"' % found.groups()


def money(value: bytes) -> bytes:
    """An amount of money as an exact number, without the sign of a currency.

    >>> money(b"-$1,234.50")
    b'"-1234.50"'
    """
    return b'"%b"' % value.translate(None, b"$,")


def octets(value: bytes) -> bytes:
    r"""Bytes as base64.

    >>> octets(rb"\x0001ff")
    b'"AAH/"'
    """
    return b'"%b"' % b64encode(bytes.fromhex(value[2:].decode()))


BUILT_IN: Final[dict[int, Convert | None]] = {
    16: boolean,
    17: octets,
    18: text,
    20: None,  # int8
    21: None,  # int2
    23: None,  # int4
    26: None,  # oid
    700: fraction,
    790: money,
    701: fraction,
    1082: text,  # date
    1083: text,  # time
    1114: moment,
    1184: zoned_moment,
    1186: text,  # interval
    1266: text,  # time with zone
    1700: text,  # numeric: exact, as a JSON number would not be for most readers
    2950: text,  # uuid
}
"""By the number of the type. What is not here is text, unless the catalogue knows better."""


def array(element: Convert | None, delimiter: bytes) -> Convert:
    """What makes a JSON array of an array whose elements `element` converts.

    >>> array(None, b",")(b"{1,NULL,3}"), array(text, b",")(b'{{a,"b c"},{"",d}}')
    (b'[1,null,3]', b'[["a","b c"],["","d"]]')
    """
    # An element in quotes, one without, or a sign.
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}%b"]+)|([{}%b])' % (delimiter, delimiter), re.DOTALL)

    def convert(value: bytes) -> bytes:
        start = value.find(b"{")  # bounds other than 1 are written before it
        if start < 0:
            return text(value)  # the vectors of the catalogue are arrays that look otherwise
        return b"".join(_pieces(token, value, start, element))

    return convert


_SIGNS: Final = {b"{": b"[", b"}": b"]"}


def _pieces(token: re.Pattern[bytes], value: bytes, start: int, element: Convert | None) -> list[bytes]:
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
