"""Compiled loops that write the values of columns as JSON, each column below the other, and then row by row.

A column's texts are written one after the other into `output`, from `position` on; `starts` and `sizes` are
their positions. On input `sizes` is −1 where a value is null, for which nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.kernels import borrowing, copy_bytes, octets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.buffers import Blobs
    from headrace.protocol.kernels import Columns, Octets

    Numbers = NDArray[np.int64]

WHOLE_BYTES: Final = 20
DATE_BYTES: Final = 20
TIME_BYTES: Final = 40
FRACTION_BYTES: Final = 32
FLAG_BYTES: Final = 5
"""The longest texts that the loops write for one value."""

_NULL = octets(b"null")
_TRUE = octets(b"true")
_FALSE = octets(b"false")
_NAN = octets(b'"NaN"')
_INFINITY = octets(b'"Infinity"')
_HEX = octets(b"0123456789ABCDEF")
_BASE64 = octets(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_QUOTE, _BACKSLASH, _MINUS, _ZERO = 0x22, 0x5C, 0x2D, 0x30
_SHORT = octets(bytes({8: 98, 9: 116, 10: 110, 12: 102, 13: 114}.get(code, 0) for code in range(32)))
"""The letter after the backslash, of control characters that have one."""

DAY_US: Final = 86_400_000_000
PLAIN_DIGITS: Final = 7
"""From 10⁷ on, and below 10⁻³, Java writes a number with an exponent."""


@borrowing
def write_wholes(values: Numbers, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write whole numbers. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            position = _write_whole(output, position, values[row])
            sizes[row] = position - starts[row]
    return position


@borrowing
def write_flags(values: Octets, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write true and false. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            text = _TRUE if values[row] else _FALSE
            sizes[row] = len(text)
            copy_bytes(output, position, text, 0, len(text))
            position += len(text)
    return position


@borrowing
def write_dates(days: Numbers, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write days since 1970 as dates in quotes. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            output[position] = _QUOTE
            position = _write_date(output, position + 1, days[row])
            output[position] = _QUOTE
            position += 1
            sizes[row] = position - starts[row]
    return position


@borrowing
def write_times(times_us: Numbers, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write microseconds since 1970 as times of UTC in quotes. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            days = times_us[row] // DAY_US
            rest = times_us[row] - days * DAY_US
            output[position] = _QUOTE
            position = _write_date(output, position + 1, days)
            seconds = rest // 1_000_000
            output[position] = 0x54  # T
            _write_digits(output, position + 1, seconds // 3600, 2)
            output[position + 3] = 0x3A  # :
            _write_digits(output, position + 4, seconds // 60 % 60, 2)
            output[position + 6] = 0x3A
            _write_digits(output, position + 7, seconds % 60, 2)
            output[position + 9] = 0x2E  # .
            _write_digits(output, position + 10, rest % 1_000_000, 6)
            output[position + 16] = 0x5A  # Z
            output[position + 17] = _QUOTE
            position += 18
            sizes[row] = position - starts[row]
    return position


@borrowing
def write_plain(texts: Blobs, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write texts as they are. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            copy_bytes(output, position, texts.data, texts.starts[row], sizes[row])
            position += sizes[row]
    return position


@borrowing
def measure_quoted(texts: Blobs) -> int:
    """The bytes that `write_quoted` writes."""
    total = 0
    for row in range(len(texts.sizes)):
        size = texts.sizes[row]
        if size >= 0:
            total += size + 2
            for index in range(texts.starts[row], texts.starts[row] + size):
                byte = texts.data[index]
                if byte < 0x20:
                    total += 1 if _SHORT[byte] else 5
                elif byte in (_QUOTE, _BACKSLASH):
                    total += 1
    return total


@borrowing
def write_quoted(texts: Blobs, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write texts in quotes, with escapes. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] < 0:
            continue
        output[position] = _QUOTE
        position += 1
        for index in range(texts.starts[row], texts.starts[row] + sizes[row]):
            byte = texts.data[index]
            if byte < 0x20:
                position = _write_control(output, position, byte)
                continue
            if byte in (_QUOTE, _BACKSLASH):
                output[position] = _BACKSLASH
                position += 1
            output[position] = byte
            position += 1
        output[position] = _QUOTE
        position += 1
        sizes[row] = position - starts[row]
    return position


@borrowing
def write_base64(blobs: Blobs, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write bytes as base64 in quotes. Returns the position after them."""
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] < 0:
            continue
        output[position] = _QUOTE
        position += 1
        end = blobs.starts[row] + sizes[row]
        for index in range(blobs.starts[row], end, 3):
            first = np.int64(blobs.data[index])
            second = np.int64(blobs.data[index + 1]) if index + 1 < end else 0
            third = np.int64(blobs.data[index + 2]) if index + 2 < end else 0
            bits = first << 16 | second << 8 | third
            output[position] = _BASE64[bits >> 18]
            output[position + 1] = _BASE64[bits >> 12 & 63]
            output[position + 2] = _BASE64[bits >> 6 & 63] if index + 1 < end else 0x3D  # =
            output[position + 3] = _BASE64[bits & 63] if index + 2 < end else 0x3D
            position += 4
        output[position] = _QUOTE
        position += 1
        sizes[row] = position - starts[row]
    return position


@borrowing
def write_fractions(texts: Blobs, output: Octets, position: int, starts: Numbers, sizes: Numbers) -> int:
    """Write floating-point numbers, given as their shortest texts, in Java's form; the position behind them.

    1e+10 becomes 1.0E10, 100 becomes 100.0, and nan becomes NaN in quotes.
    """
    for row in range(len(sizes)):
        starts[row] = position
        if sizes[row] >= 0:
            first = texts.starts[row]
            position = _write_fraction(texts.data, first, first + sizes[row], output, position)
            sizes[row] = position - starts[row]
    return position


@borrowing
def measure_documents(sizes: Columns, fixed: int, ends: Numbers) -> None:
    """Fill `ends`, from its second on, with where each row's document ends; `fixed` is what all have."""
    for row in range(sizes.shape[1]):
        size = fixed
        for column in range(sizes.shape[0]):
            size += len(_NULL) if sizes[column, row] < 0 else sizes[column, row]
        ends[row + 1] = ends[row] + size


@borrowing
def write_documents(
    cells: Octets, starts: Columns, sizes: Columns, names: Blobs, ends: Numbers, output: Octets
) -> None:
    """Write a document for each row: each value after its name, and a closing brace."""
    for row in range(sizes.shape[1]):
        position = ends[row]
        for column in range(sizes.shape[0]):
            copy_bytes(output, position, names.data, names.starts[column], names.sizes[column])
            position += names.sizes[column]
            if sizes[column, row] < 0:
                copy_bytes(output, position, _NULL, 0, len(_NULL))
                position += len(_NULL)
            else:
                copy_bytes(output, position, cells, starts[column, row], sizes[column, row])
                position += sizes[column, row]
        output[position] = 0x7D  # }


@borrowing
def _write_whole(output: Octets, position: int, value: int) -> int:
    if value < 0:
        output[position] = _MINUS
        position += 1
    # The smallest number has no positive counterpart as a signed number.
    rest = np.uint64(-value) if value < 0 else np.uint64(value)
    size = 1
    limit = np.uint64(10)
    while size < 19 and rest >= limit:
        size += 1
        limit *= np.uint64(10)
    for index in range(position + size - 1, position - 1, -1):
        quotient = rest // np.uint64(10)
        output[index] = np.uint8(np.uint64(_ZERO) + rest - quotient * np.uint64(10))
        rest = quotient
    return position + size


@borrowing
def _write_digits(output: Octets, position: int, value: int, width: int) -> None:
    for index in range(position + width - 1, position - 1, -1):
        output[index] = _ZERO + value % 10
        value //= 10


@borrowing
def _write_date(output: Octets, position: int, days: int) -> int:
    """Write a day since 1970 as Java does: years have four digits, or a sign and more."""
    # Years begin in March, so that the leap day is the last of its year; eras are of 400 years.
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    position = _write_year(output, position, year_of_era + era * 400 + (1 if month <= 2 else 0))
    output[position] = _MINUS
    _write_digits(output, position + 1, month, 2)
    output[position + 3] = _MINUS
    _write_digits(output, position + 4, day, 2)
    return position + 6


@borrowing
def _write_year(output: Octets, position: int, year: int) -> int:
    if 0 <= year <= 9999:
        _write_digits(output, position, year, 4)
        return position + 4
    output[position] = _MINUS if year < 0 else 0x2B  # +
    size = abs(year)
    if size > 9999:
        return _write_whole(output, position + 1, size)
    _write_digits(output, position + 1, size, 4)
    return position + 5


@borrowing
def _write_control(output: Octets, position: int, byte: int) -> int:
    output[position] = _BACKSLASH
    if _SHORT[byte]:
        output[position + 1] = _SHORT[byte]
        return position + 2
    output[position + 1] = 0x75  # u
    output[position + 2] = _ZERO
    output[position + 3] = _ZERO
    output[position + 4] = _HEX[byte >> 4]
    output[position + 5] = _HEX[byte & 15]
    return position + 6


@borrowing
def _write_fraction(text: Octets, index: int, end: int, output: Octets, position: int) -> int:
    is_negative = text[index] == _MINUS
    index += is_negative
    if text[index] in (0x69, 0x6E):  # inf, nan
        return _write_beyond(text[index] == 0x69, is_negative, output, position)
    if is_negative:
        output[position] = _MINUS
        position += 1
    # The digits are written two positions later than needed, because a point or a zero may precede them.
    digits = position + 8
    count, point, exponent = _read_digits(text, index, end, output, digits)
    magnitude = point + exponent  # of 0.d₁d₂d₃… × 10^magnitude
    if count == 0:
        output[digits] = _ZERO
        count, magnitude = 1, 1
    if -2 <= magnitude <= PLAIN_DIGITS:
        return _place_point(output, position, digits, count, magnitude)
    position = _place_point(output, position, digits, count, 1)
    output[position] = 0x45  # E
    return _write_whole(output, position + 1, magnitude - 1)


@borrowing
def _write_beyond(is_infinite: bool, is_negative: bool, output: Octets, position: int) -> int:
    text = _INFINITY if is_infinite else _NAN
    shift = 1 if is_infinite and is_negative else 0
    copy_bytes(output, position + shift, text, 0, len(text))
    if shift:
        output[position] = _QUOTE
        output[position + 1] = _MINUS
    return position + shift + len(text)


@borrowing
def _read_digits(text: Octets, index: int, end: int, output: Octets, position: int) -> tuple[int, int, int]:
    """Write the significant digits. Returns their number, how many are before the point, and the exponent."""
    count, point, seen_point, zeros = 0, 0, False, 0
    while index < end and text[index] != 0x65:  # e
        byte = text[index]
        index += 1
        if byte == 0x2E:
            seen_point = True
        elif byte == _ZERO and count == 0:
            point -= 1 if seen_point else 0
        else:
            output[position + count] = byte
            count += 1
            point += 0 if seen_point else 1
            zeros = zeros + 1 if byte == _ZERO else 0
    exponent, sign = 0, 1
    for place in range(index + 1, end):
        if text[place] == _MINUS:
            sign = -1
        elif text[place] != 0x2B:
            exponent = 10 * exponent + int(text[place]) - _ZERO
    return count - zeros, point, sign * exponent


@borrowing
def _place_point(output: Octets, position: int, digits: int, count: int, before: int) -> int:
    """Write the digits found further on, with a point after the first `before`, and zeros as needed."""
    if before <= 0:
        output[position] = _ZERO
        position += 1
    for index in range(before):
        output[position] = output[digits + index] if index < count else _ZERO
        position += 1
    output[position] = 0x2E
    position += 1
    for _ in range(-before):
        output[position] = _ZERO
        position += 1
    if before >= count:
        output[position] = _ZERO
        return position + 1
    for index in range(max(before, 0), count):
        output[position] = output[digits + index]
        position += 1
    return position
