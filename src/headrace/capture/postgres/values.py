"""Converts values and rows from PostgreSQL's text format to JSON.

The connection requests ISO dates, times in UTC, ISO 8601 intervals and hexadecimal bytea, so that most types
are their text in quotes. `None` as a converter means that the text is valid JSON.

There is a fast path for rows like the previous one, because consecutive rows are usually alike: null in the
same columns, and without characters to escape in the same columns. Decoding and formatting value by value
takes 5 µs for a row of five columns. A regular expression that was compiled for such rows finds and checks
the values in the message, and a template inserts them unchanged: 1.2 µs.

The expression need not count lengths. In a tuple, a text is t · length i32 · text. PostgreSQL's texts contain
no zero byte, and a length below 64 KiB starts with two of them. So every pair of zero bytes in the expression
matches the length of one text, in order, and the number of texts must be equal. Only a null (the letter n)
could be mistaken for the last letter of the text before it. So the lengths of texts before nulls are
compared: then every null is at its place, because the number of nulls is fixed too. Any other row does not
match.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.capture.postgres.pgoutput import MESSAGE_START, UNCHANGED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.capture.postgres.pgoutput import TupleData, Value
    from headrace.capture.postgres.relation import Envelopes, SourceTransaction


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

OPS: Final = {ord("I"): b"c", ord("U"): b"u"}
NEW_ROW: Final = MESSAGE_START + 5
"""The start of the new row in a message without an old row."""
BEGINNING: Final = rb"t\x00\x00.."
MAX_TEMPLATES: Final = 32
"""The number of templates of a table; further rows are formatted value by value."""
PATIENCE: Final = 1_000
"""After this many misses, templates are disabled if they miss more than half of the rows."""


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


class ValuePattern(NamedTuple):
    """The pattern of a value in PostgreSQL's text, and its format in JSON."""

    pattern: bytes
    written: bytes
    """With one placeholder for each group of the pattern."""
    may_end_in_n: bool
    convert: Converter | None = None


PLAIN: Final[dict[Converter | None, ValuePattern]] = {
    None: ValuePattern(rb"(-?\d+)", b"%b", may_end_in_n=False),
    text: ValuePattern(rb'([^\x00-\x1f"\\]*)', b'"%b"', may_end_in_n=True),
    timestamp: ValuePattern(TIMESTAMP, b'"%bT%b"', may_end_in_n=False),
    timestamptz: ValuePattern(TIMESTAMP + UTC, b'"%bT%bZ"', may_end_in_n=False),
}
"""By converter: the pattern of values that can be inserted unchanged."""
NULL: Final = ValuePattern(b"n", b"null", may_end_in_n=False)


def converted(convert: Converter | None) -> ValuePattern:
    """The pattern of values that need their converter."""
    return ValuePattern(rb"([^\x00]*)", b"%b", may_end_in_n=True, convert=convert)


class TableColumns(NamedTuple):
    """The columns of a table that is captured with all columns."""

    names: Sequence[str]
    converters: Sequence[Converter | None]
    key: Sequence[int]

    def has_key(self, patterns: Sequence[ValuePattern]) -> bool:
        """Whether the key can be formatted from matched values."""
        if len(self.key) == 1:
            return patterns[self.key[0]] in (PLAIN[None], PLAIN[text])
        return bool(self.key) and all(patterns[index] is not NULL for index in self.key)


class RowTemplates:
    """The templates of one table."""

    def __init__(self, columns: TableColumns, envelopes: Envelopes) -> None:
        self._columns = columns
        self._envelopes = envelopes
        self._templates: dict[tuple[ValuePattern, ...], RowTemplate] = {}
        self._odd = [converted(convert) for convert in columns.converters]
        self._plain = [PLAIN.get(value_pattern.convert, value_pattern) for value_pattern in self._odd]
        self._matches = [
            re.compile(value_pattern.pattern, re.DOTALL).fullmatch for value_pattern in self._plain
        ]
        self._last: RowTemplate | None = None
        self._rows = 0
        self._others = 0

    def event(self, data: bytes, at: SourceTransaction) -> tuple[bytes, bytes] | None:
        """Key and value of the new row in a message; None if the last row's template does not match."""
        if self._last is None:
            return None
        self._rows += 1
        return self._last.event(data, at)

    def learn(self, values: TupleData) -> None:
        """Select the template for rows like this one; disables templates that mostly miss."""
        self._others += 1
        if self._others > PATIENCE and 2 * self._others > self._rows:
            self._last = None
            return
        if UNCHANGED in values:
            return
        patterns = tuple([self._pattern_of(index, value) for index, value in enumerate(values)])
        if (
            patterns not in self._templates
            and len(self._templates) < MAX_TEMPLATES
            and self._columns.has_key(patterns)
        ):
            self._templates[patterns] = RowTemplate(self._columns, patterns, self._envelopes)
        self._last = self._templates.get(patterns, self._last)

    def _pattern_of(self, index: int, value: Value) -> ValuePattern:
        if not isinstance(value, bytes):
            return NULL
        return self._plain[index] if self._matches[index](value) else self._odd[index]


class RowTemplate:
    """The expression and the template for rows whose columns have the same patterns."""

    def __init__(self, columns: TableColumns, patterns: Sequence[ValuePattern], envelopes: Envelopes) -> None:
        self._envelopes = envelopes
        self._at: SourceTransaction | None = None
        self._templates: dict[int, bytes] = {}
        pattern = [b"N", re.escape(len(patterns).to_bytes(2, "big"))]
        places, count = [], 0
        for value_pattern in patterns:
            pattern.append(
                value_pattern.pattern if value_pattern is NULL else BEGINNING + value_pattern.pattern
            )
            places.append(range(count, count := count + value_pattern.written.count(b"%b")))
        self._match = re.compile(b"".join(pattern), re.DOTALL).fullmatch
        self._measured = [
            place[0] + 1
            for place, value_pattern, following in zip(places, patterns, patterns[1:], strict=False)
            if value_pattern.may_end_in_n and following is NULL
        ]
        self._converters = [
            (place[0], value_pattern.convert)
            for place, value_pattern in zip(places, patterns, strict=True)
            if value_pattern.convert
        ]
        self._row = _document(columns.names, patterns)
        self._key = _key(columns, patterns, places)

    def event(self, data: bytes, at: SourceTransaction) -> tuple[bytes, bytes] | None:
        """Key and value of the new row in a message; None if the row does not match."""
        found = self._match(data, NEW_ROW)
        if found is None:
            return None
        for group in self._measured:
            start, end = found.span(group)
            if end - start != data[start - 2] << 8 | data[start - 1]:
                return None
        values: Sequence[bytes] = found.groups()
        if self._converters:
            values = self._converted(values)
        if at is not self._at:
            self._at, self._templates = at, {}
        template = self._templates.get(data[MESSAGE_START]) or self._template(data[MESSAGE_START], at)
        return self._key(values), template % (*values, int.from_bytes(data[1:9], "big"))

    def _converted(self, values: Sequence[bytes]) -> Sequence[bytes]:
        written = list(values)
        for group, convert in self._converters:
            written[group] = convert(written[group])
        return written

    def _template(self, message: int, at: SourceTransaction) -> bytes:
        """The template of events with the fields that all events of a transaction share."""
        times = {"commit_ms": at.commit_ms, "xid": at.xid, "now_ms": at.now_ms}
        template = self._envelopes.template(OPS[message], self._row, **times)
        self._templates[message] = template
        return template


def _document(names: Sequence[str], patterns: Sequence[ValuePattern]) -> bytes:
    quoted = [json.dumps(name, ensure_ascii=False).encode().replace(b"%", b"%%") for name in names]
    fields = [
        name + b":" + value_pattern.written for name, value_pattern in zip(quoted, patterns, strict=True)
    ]
    return b"{" + b",".join(fields) + b"}"


def _key(
    columns: TableColumns, patterns: Sequence[ValuePattern], places: Sequence[range]
) -> Callable[[Sequence[bytes]], bytes]:
    """The function that formats the key from matched values."""
    groups = [group for index in columns.key for group in places[index]]
    if len(columns.key) == 1:
        return itemgetter(*groups)
    names = [columns.names[index] for index in columns.key]
    template = _document(names, [patterns[index] for index in columns.key])
    return lambda values: template % tuple([values[group] for group in groups])
