"""CSV values into tokens: each value is one record, and each of its fields one token.

One compiled pass over all values takes fields without quotes, and fields in quotes that hold no quote. All
else (doubled quotes, line breaks, a wrong number of fields, text that is not UTF-8) it marks as doubtful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.types as pt

from headrace.columns.values.json_lexer import after_sequence, literal, number_stop
from headrace.columns.values.scan import Scan
from headrace.columns.values.tokens import BROKEN, INTEGER, MISSING, NULL, OBJECT, STRING
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.values.shape import Shape
    from headrace.columns.values.tokens import Flags, Places
    from headrace.protocol.kernels import Octets

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
        room = scan.room
        room.counts[0] = len(present)
        room.rows[:] = np.arange(len(present))
        _scan_records(
            data, offsets, present, self._uses, self._delimiter, self._quote, self._min_time_digits,
            room.kinds, room.starts, room.stops, room.doubtful,
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
    # Behind the closing quote there is the delimiter or nothing.
    if position >= end or (position + 1 < end and data[position + 1] != delimiter):
        return start, start, -1
    return start, position, position + 1


@borrowing
def _kind(data: Octets, start: int, stop: int, after: int, use: int, min_time_digits: int) -> int:
    """The kind of a field's token, by what its column is for."""
    if start == stop:
        # Nothing is null, and nothing in quotes is an empty text.
        return NULL if after == stop else STRING
    kind, last = BROKEN, -1
    if use == NUMBER or (use == TIME and stop - start >= min_time_digits):
        kind, last = number_stop(data, start, stop)
    elif use == BOOLEAN:
        kind, last = literal(data, start, stop)
    is_token = last == stop and kind != NULL and (use != TIME or kind == INTEGER)
    return kind if is_token else STRING
