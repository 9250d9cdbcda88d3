"""CSV values as typed columns: each value is one record with the fields of the type, in their order.

As RFC 4180 has it: fields in quotes may hold delimiters, line breaks, and quotes written twice. An empty
field is null; a line break at the end of the value is ignored.

One compiled pass over all values takes fields without quotes, and fields in quotes that hold no quote. All
else (doubled quotes, line breaks, a wrong number of fields, text that is not UTF-8) it marks as doubtful: the
reference parser reads those values one at a time, and its errors are the messages that users see.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.values.assembly import finish
from headrace.columns.values.json_scanner import after_sequence, literal, number_stop
from headrace.columns.values.scalars import leaf_reader
from headrace.columns.values.tokens import (
    BROKEN,
    FALSE,
    FRACTION,
    INTEGER,
    MISSING,
    NULL,
    OBJECT,
    STRING,
    TRUE,
    BadValue,
    Scan,
    UnsupportedType,
    decoded,
    mismatch,
    raw_values,
    shape_of,
)
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from headrace.columns.values.times import TimeRules
    from headrace.columns.values.tokens import Flags, Parsed, Places, Shape
    from headrace.protocol.kernels import Octets


_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_FRACTION = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


class CsvReference:
    """Reads records of one type, one at a time."""

    def __init__(self, type_: pa.DataType, rules: TimeRules, delimiter: str, quote: str) -> None:
        self._type = type_
        self._readers = [leaf_reader(field.type, rules) for field in type_]
        self._quote = quote
        self._min_time_digits = rules.min_csv_digits
        edge, mark = re.escape(delimiter), re.escape(quote)
        self._field = re.compile(
            rf"(?:{mark}(?P<quoted>(?:[^{mark}]|{mark}{mark})*){mark}|(?P<plain>[^{edge}{mark}\r\n]*))(?P<end>{edge}|\Z)"
        )

    def read(self, value: bytes) -> dict[str, Any]:
        """The record as Python objects for Arrow; raises `BadValue` with the reason and the position."""
        text = decoded(value).removesuffix("\n").removesuffix("\r")
        if not text:
            raise BadValue("not a CSV record: the value is empty")
        fields = list(self._split(text))
        if len(fields) != len(self._readers):
            raise BadValue(f"{len(fields)} fields instead of {len(self._readers)}")
        return {
            name: self._convert(index, text)
            for index, (name, text) in enumerate(zip(self._names, fields, strict=True))
        }

    @property
    def _names(self) -> list[str]:
        return [field.name for field in self._type]

    def _split(self, text: str) -> Iterator[str | None]:
        position, more = 0, True
        while more:
            found = self._field.match(text, position)
            if found is None:
                raise BadValue(
                    f"not a CSV record: a quote or line break is out of place after character {position}"
                )
            if found["quoted"] is None:
                yield found["plain"] or None
            else:
                yield found["quoted"].replace(self._quote * 2, self._quote)
            position, more = found.end(), bool(found["end"])

    def _convert(self, index: int, text: str | None) -> Any:
        if text is None:
            return None
        convert, name = self._readers[index]
        value = convert(*self._token(text, self._type[index].type))
        if value is None:
            raise mismatch(self._type[index].name, text, name)
        return value

    def _token(self, text: str, type_: pa.DataType) -> tuple[int, str]:
        """Kind and text of a field, by the type of its column."""
        if pt.is_boolean(type_):
            return {"true": TRUE, "false": FALSE}.get(text.lower(), STRING), text
        is_time = pt.is_timestamp(type_) and len(text) >= self._min_time_digits
        if is_time or pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_):
            if _INTEGER.fullmatch(text):
                return INTEGER, str(int(text))
            if not is_time and _FRACTION.fullmatch(text):
                return FRACTION, text
        return STRING, text


TEXT: Final = 0
NUMBER: Final = 1
BOOLEAN: Final = 2
TIME: Final = 3


class CsvScanner:
    """Scans records with the fields of one shape."""

    def __init__(self, shape: Shape, delimiter: str, quote: str, min_time_digits: int) -> None:
        self._shape = shape
        self._delimiter, self._quote = ord(delimiter), ord(quote)
        self._min_time_digits = min_time_digits
        self._uses = np.array([_use(shape.types[node]) for node in shape.children(0)], np.int64)

    def scan(self, data: Octets, offsets: Places, present: Flags) -> Scan:
        """The tokens of the values that lie between `offsets` in `data`; those not `present` are null."""
        scan = Scan.blank(self._shape, data, np.array([len(present)]))
        arrays = scan.arrays
        arrays.counts[0] = len(present)
        arrays.rows[:] = np.arange(len(present))
        _scan_records(
            data, offsets, present, self._uses, self._delimiter, self._quote, self._min_time_digits,
            arrays.kinds, arrays.starts, arrays.stops, arrays.doubtful,
        )  # fmt: skip
        return scan


def _use(type_: object) -> int:
    if pt.is_boolean(type_):
        return BOOLEAN
    if pt.is_timestamp(type_):
        return TIME
    return NUMBER if pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_) else TEXT


@borrowing
def _scan_records(
    data: Octets,
    offsets: Places,
    present: Flags,
    uses: NDArray[np.int64],
    delimiter: int,
    quote: int,
    min_time_digits: int,
    kinds: Flags,
    starts: Places,
    stops: Places,
    doubtful: Flags,
) -> None:
    """Scan all values."""
    count = len(present)
    for row in range(count):
        if not present[row]:
            continue
        kinds[row] = OBJECT
        position, end = int(offsets[row]), int(offsets[row + 1])
        doubtful[row] = position == end
        for field in range(len(uses)):
            # Each field but the last ends at a delimiter, and the last at the end.
            start, stop, position = _field(data, position, end, delimiter, quote)
            if position < 0 or (position == end) != (field == len(uses) - 1):
                doubtful[row] = 1
                break
            token = (field + 1) * count + row
            kinds[token] = _kind(data, start, stop, position, uses[field], min_time_digits)
            starts[token], stops[token] = start, stop
            position += 1
        if doubtful[row]:
            for field in range(len(uses) + 1):
                kinds[field * count + row] = MISSING


@borrowing
def _field(data: Octets, position: int, end: int, delimiter: int, quote: int) -> tuple[int, int, int]:
    """The start and stop of the field at `position`, and the position after it (−1: not clear)."""
    quoted = position < end and data[position] == quote
    start = position + 1 if quoted else position
    closing = quote if quoted else delimiter
    position = start
    while position < end and data[position] != closing:
        byte = data[position]
        if byte in (10, 13) or byte == quote:
            return start, start, -1
        position = position + 1 if byte < 128 else after_sequence(data, position, end)
        if position < 0:
            return start, start, -1
    if not quoted:
        return start, position, position
    # After the closing quote there is the delimiter or the end.
    if position >= end or (position + 1 < end and data[position + 1] != delimiter):
        return start, start, -1
    return start, position, position + 1


@borrowing
def _kind(data: Octets, start: int, stop: int, after: int, use: int, min_time_digits: int) -> int:
    """The kind of a field's token, by the type of its column."""
    if start == stop:
        # An empty field is null, and an empty field in quotes is an empty text.
        return NULL if after == stop else STRING
    kind, last = BROKEN, -1
    if use == NUMBER or (use == TIME and stop - start >= min_time_digits):
        kind, last = number_stop(data, start, stop)
    elif use == BOOLEAN:
        kind, last = literal(data, start, stop)
    is_token = last == stop and kind != NULL and (use != TIME or kind == INTEGER)
    return kind if is_token else STRING


class CsvParser:
    """Parses records into structs of `type_`; `rules` say what its times mean."""

    def __init__(self, type_: pa.DataType, rules: TimeRules, delimiter: str = ",", quote: str = '"') -> None:
        for name, mark in (("delimiter", delimiter), ("quote", quote)):
            if len(mark) != 1 or not mark.isascii() or mark in "\r\n":
                raise UnsupportedType(f"the {name} of CSV is one ASCII character, not {mark!r}")
        self._type = type_
        self._rules = rules
        # Bytes in CSV are the text itself.
        texts = pa.struct([_as_text(field) for field in type_])
        self._scanner = CsvScanner(shape_of(texts), delimiter, quote, rules.min_csv_digits)
        self._reference = CsvReference(texts, rules, delimiter, quote)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The records, with the reason of each value that is not one."""
        scan = self._scanner.scan(*raw_values(values))
        parsed = finish(scan, values, self._rules, self._reference)
        return parsed._replace(values=parsed.values.cast(self._type))


def _as_text(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pt.is_binary(field.type) else field
