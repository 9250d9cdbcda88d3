"""New rows of the kind that the last one was, read and written by one regular expression and one template.

Rows that follow one another are mostly alike: null in the same columns, and with nothing to escape in the
same others. To cut a tuple into values, look at each and write it takes 5 µs for five columns; a pattern made
for the kind finds the values in the message and checks them, and a template takes them as they are: 1.2 µs.

Lengths are not counted for that. In a tuple a text is t · length i32 · text; no text of PostgreSQL has a zero
byte, and a length below 64 KiB begins with two of them. So each pair of zeros in the pattern is that of one
text, in order, and there must be as many texts as it has. Only a null (an n) could be taken for the last
letter of the text before it. It is not when texts before nulls are measured: then every null is at its place,
for there are as many as the pattern has. Whatever is of another kind does not match.
"""

from __future__ import annotations

import json
import re
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.capture.postgres.pgoutput import MESSAGE, UNCHANGED
from headrace.capture.postgres.values import MOMENT, UTC, moment, text, zoned_moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.postgres.pgoutput import Tuple, Value
    from headrace.capture.postgres.relation import Envelopes, Transaction
    from headrace.capture.postgres.values import Convert

OPS: Final = {ord("I"): b"c", ord("U"): b"u"}
NEW_ROW: Final = MESSAGE + 5
"""Where a new row begins, if no old one stands before it."""
BEGINNING: Final = rb"t\x00\x00.."
MOST_KINDS: Final = 32
"""Of a table. Rows of others are written value by value."""
PATIENCE: Final = 1_000
"""After so many rows that were not like their last ones it is asked whether most are not."""


class Form(NamedTuple):
    """What values look like in the database's text, and how they are written."""

    pattern: bytes
    written: bytes
    """A field for each group of the pattern."""
    may_end_in_n: bool
    convert: Convert | None = None


PLAIN: Final[dict[Convert | None, Form]] = {
    None: Form(rb"(-?\d+)", b"%b", may_end_in_n=False),
    text: Form(rb'([^\x00-\x1f"\\]*)', b'"%b"', may_end_in_n=True),
    moment: Form(MOMENT, b'"%bT%b"', may_end_in_n=False),
    zoned_moment: Form(MOMENT + UTC, b'"%bT%bZ"', may_end_in_n=False),
}
"""By converter: the values that need none."""
NULL: Final = Form(b"n", b"null", may_end_in_n=False)


def converted(convert: Convert | None) -> Form:
    """The form of values that are converted."""
    return Form(rb"([^\x00]*)", b"%b", may_end_in_n=True, convert=convert)


class Columns(NamedTuple):
    """The columns of a table, all of which are captured."""

    names: Sequence[str]
    converters: Sequence[Convert | None]
    key: Sequence[int]

    def have_key(self, forms: Sequence[Form]) -> bool:
        """Whether what a pattern finds makes a key: the text of one column, or a document of several."""
        if len(self.key) == 1:
            return forms[self.key[0]] in (PLAIN[None], PLAIN[text])
        return bool(self.key) and all(forms[index] is not NULL for index in self.key)


class RowKinds:
    """The kinds of a table's rows."""

    def __init__(self, columns: Columns, envelopes: Envelopes) -> None:
        self._columns = columns
        self._envelopes = envelopes
        self._kinds: dict[tuple[Form, ...], RowKind] = {}
        self._odd = [converted(convert) for convert in columns.converters]
        self._plain = [PLAIN.get(form.convert, form) for form in self._odd]
        self._matches = [re.compile(form.pattern, re.DOTALL).fullmatch for form in self._plain]
        self._last: RowKind | None = None
        self._rows = 0
        self._others = 0

    def event(self, data: bytes, at: Transaction) -> tuple[bytes, bytes] | None:
        """Key and value for the new row in a message; None where it is not of the kind of the last one."""
        if self._last is None:
            return None
        self._rows += 1
        return self._last.event(data, at)

    def learn(self, values: Tuple) -> None:
        """This is how rows look now. Where most are unlike the last one, looking costs more than it saves."""
        self._others += 1
        if self._others > PATIENCE and 2 * self._others > self._rows:
            self._last = None
            return
        if UNCHANGED in values:
            return
        forms = tuple([self._form(index, value) for index, value in enumerate(values)])
        if forms not in self._kinds and len(self._kinds) < MOST_KINDS and self._columns.have_key(forms):
            self._kinds[forms] = RowKind(self._columns, forms, self._envelopes)
        self._last = self._kinds.get(forms, self._last)

    def _form(self, index: int, value: Value) -> Form:
        if not isinstance(value, bytes):
            return NULL
        return self._plain[index] if self._matches[index](value) else self._odd[index]


class RowKind:
    """Rows whose columns have the same forms."""

    def __init__(self, columns: Columns, forms: Sequence[Form], envelopes: Envelopes) -> None:
        self._envelopes = envelopes
        self._at: Transaction | None = None
        self._templates: dict[int, bytes] = {}
        pattern = [b"N", re.escape(len(forms).to_bytes(2, "big"))]
        places, count = [], 0
        for form in forms:
            pattern.append(form.pattern if form is NULL else BEGINNING + form.pattern)
            places.append(range(count, count := count + form.written.count(b"%b")))
        self._match = re.compile(b"".join(pattern), re.DOTALL).fullmatch
        self._measured = [
            place[0] + 1
            for place, form, following in zip(places, forms, forms[1:], strict=False)
            if form.may_end_in_n and following is NULL
        ]
        self._converters = [
            (place[0], form.convert) for place, form in zip(places, forms, strict=True) if form.convert
        ]
        self._row = _document(columns.names, forms)
        self._key = _key(columns, forms, places)

    def event(self, data: bytes, at: Transaction) -> tuple[bytes, bytes] | None:
        """Key and value for the new row in a message; None where it is of another kind."""
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
        template = self._templates.get(data[MESSAGE]) or self._template(data[MESSAGE], at)
        return self._key(values), template % (*values, int.from_bytes(data[1:9], "big"))

    def _converted(self, values: Sequence[bytes]) -> Sequence[bytes]:
        written = list(values)
        for group, convert in self._converters:
            written[group] = convert(written[group])
        return written

    def _template(self, message: int, at: Transaction) -> bytes:
        """What the events of a transaction share, written once."""
        times = {"commit_ms": at.commit_ms, "xid": at.xid, "now_ms": at.now_ms}
        template = self._envelopes.template(OPS[message], self._row, **times)
        self._templates[message] = template
        return template


def _document(names: Sequence[str], forms: Sequence[Form]) -> bytes:
    quoted = [json.dumps(name, ensure_ascii=False).encode().replace(b"%", b"%%") for name in names]
    fields = [name + b":" + form.written for name, form in zip(quoted, forms, strict=True)]
    return b"{" + b",".join(fields) + b"}"


def _key(
    columns: Columns, forms: Sequence[Form], places: Sequence[range]
) -> Callable[[Sequence[bytes]], bytes]:
    """What makes the key of what a pattern has found."""
    groups = [group for index in columns.key for group in places[index]]
    if len(columns.key) == 1:
        return itemgetter(*groups)
    names = [columns.names[index] for index in columns.key]
    template = _document(names, [forms[index] for index in columns.key])
    return lambda values: template % tuple([values[group] for group in groups])
