"""Tokens as booleans, integers, floating-point numbers and decimals, by the rules of Spark's `from_json`.

`leaf_reader` returns the reference implementation for one value of any type without parts. It takes the kind
and the text of a token, and returns None if they are not of its type. The compiled loops convert whole
columns.
"""

from __future__ import annotations

import binascii
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.buffers import valid_bits
from headrace.columns.values.text import strings
from headrace.columns.values.times import TimeRules, epoch_microseconds, read_date, read_timestamp
from headrace.columns.values.tokens import (
    FALSE,
    FRACTION,
    INTEGER,
    NULL,
    STRING,
    TRUE,
    Tokens,
    column,
)
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

    Convert: TypeAlias = Callable[[int, str], Any]


_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT: Final = Context(prec=2000, rounding=ROUND_HALF_UP)
_INFINITE: Final = {
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "+INF": float("inf"),
    "-Infinity": float("-inf"),
    "-INF": float("-inf"),
}
_INTEGER_NAMES: Final = {pa.int8(): "byte", pa.int16(): "short", pa.int32(): "int", pa.int64(): "long"}


def leaf_reader(type_: pa.DataType, rules: TimeRules) -> tuple[Convert, str]:
    """The reader of one type, and the name that its messages use."""
    if pt.is_integer(type_):
        return _integers(type_), _INTEGER_NAMES[type_]
    if pt.is_decimal(type_):
        return _decimals(type_.precision, type_.scale), f"decimal({type_.precision},{type_.scale})"
    if pt.is_timestamp(type_):
        return _timestamps(type_, rules), "timestamp" if type_.tz else "timestamp_ntz"
    return _READERS[type_]


def _string(_: int, text: str) -> str:
    return text


def _boolean(kind: int, _: str) -> bool | None:
    return kind == TRUE if kind in {TRUE, FALSE} else None


def _binary(kind: int, text: str) -> bytes | None:
    try:
        return binascii.a2b_base64(text, strict_mode=True) if kind == STRING else None
    except ValueError:
        return None


def _integers(type_: pa.DataType) -> Convert:
    width = np.iinfo(type_.to_pandas_dtype())

    def read(kind: int, text: str) -> int | None:
        # Longer than any valid number, and faster to refuse than to read.
        if kind != INTEGER or len(text) > 20:
            return None
        number = int(text)
        return number if width.min <= number <= width.max else None

    return read


def _double(kind: int, text: str) -> float | None:
    if text in _INFINITE:
        return _INFINITE[text]
    if kind not in {INTEGER, FRACTION}:
        return None
    # Written without a point, −0 is the whole number 0.
    return 0.0 if kind == INTEGER and text == "-0" else float(text)


def _float(kind: int, text: str) -> float | None:
    number = _double(kind, text)
    if number is None or text in _INFINITE or text == "-0":
        return number
    try:
        # Converting through a double could round twice.
        return float(pc.cast(pa.scalar(text), pa.float32()).as_py())
    except pa.ArrowInvalid:
        return (
            float(np.float64(number).astype(np.float32)) if abs(number) < 1 else np.copysign(np.inf, number)
        )


def _decimals(precision: int, scale: int) -> Convert:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def read(kind: int, text: str) -> Decimal | None:
        if kind == STRING:
            text = text.replace(",", "")
        elif kind not in {INTEGER, FRACTION}:
            return None
        if not _DECIMAL.fullmatch(text):
            return None
        try:
            number = Decimal(text).quantize(unit, context=_EXACT)
        except InvalidOperation:
            return None
        return number if abs(number) < limit else None

    return read


def _date(kind: int, text: str) -> int | None:
    return read_date(text) if kind == STRING else None


def _timestamps(type_: pa.DataType, rules: TimeRules) -> Convert:
    def read(kind: int, text: str) -> int | None:
        if kind == STRING:
            return read_timestamp(text, None if type_.tz is None else rules.zone)
        if kind != INTEGER or type_.tz is None:
            return None
        return epoch_microseconds(text, rules.unit)

    return read


_READERS: Final[dict[pa.DataType, tuple[Convert, str]]] = {
    pa.string(): (_string, "string"),
    pa.float32(): (_float, "float"),
    pa.float64(): (_double, "double"),
    pa.date32(): (_date, "date"),
    pa.binary(): (_binary, "base64 string"),
    pa.bool_(): (_boolean, "boolean"),
}


_EXACT_MANTISSA: Final = 1 << 53
_EXACT_POWER: Final = 22
_POWERS: Final = np.array([float(f"1e{power}") for power in range(_EXACT_POWER + 1)])
_TENS: Final = np.array([10**power for power in range(19)], np.int64)
_MAX_DIGITS: Final = 18
_ANY_RULES: Final = TimeRules()


def booleans(tokens: Tokens) -> pa.BooleanArray:
    """True and false; anything else is doubtful."""
    present = tokens.present
    strange = present & (tokens.kinds != TRUE) & (tokens.kinds != FALSE)
    tokens.doubtful[tokens.rows[strange]] = 1
    return pa.array(tokens.kinds == TRUE, mask=~present)


def integers(tokens: Tokens, type_: pa.DataType) -> pa.Array:
    """Whole numbers that fit into `type_`."""
    width = np.iinfo(type_.to_pandas_dtype())
    numbers = np.zeros(len(tokens.kinds), np.int64)
    _read_integers(tokens, width.max, numbers)
    return column(type_, numbers.astype(width.dtype, copy=False), tokens.present)


def doubles(tokens: Tokens, type_: pa.DataType) -> pa.Array:
    """Floating-point numbers, each the nearest to its text."""
    numbers = np.zeros(len(tokens.kinds), np.float64)
    hard = np.zeros(len(tokens.kinds), np.bool_)
    single = type_ == pa.float32()
    left = _read_doubles(tokens, single, numbers, hard)
    if left:
        numbers[hard] = _hard_doubles(tokens, hard, type_)
    return column(type_, numbers.astype(type_.to_pandas_dtype(), copy=False), tokens.present)


def decimals(tokens: Tokens, type_: pa.DataType) -> pa.Array:
    """Decimals, rounded half up to the scale of `type_`."""
    numbers = np.zeros((len(tokens.kinds), 2), np.int64)
    _read_decimals(tokens, type_.scale, min(type_.precision, _MAX_DIGITS), numbers)
    return pa.Array.from_buffers(
        type_, len(tokens.kinds), [valid_bits(tokens.present), pa.py_buffer(numbers)]
    )


def _hard_doubles(tokens: Tokens, hard: NDArray[np.bool_], type_: pa.DataType) -> NDArray[np.float64]:
    """The numbers that one multiplication does not compute exactly."""
    text = strings(
        Tokens(
            tokens.data,
            tokens.kinds[hard],
            tokens.starts[hard],
            tokens.stops[hard],
            tokens.rows[hard],
            tokens.doubtful,
        )
    )
    try:
        numbers: NDArray[np.float64] = pc.cast(text, type_).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        # One of them is out of range: Arrow refuses it, and Spark reads it as infinite.
        convert, _ = leaf_reader(type_, _ANY_RULES)
        numbers = np.array([convert(FRACTION, number) for number in text.to_pylist()])
    return numbers.astype(np.float64)


@borrowing
def _read_integers(
    tokens: Tokens,
    high: int,
    numbers: NDArray[np.int64],
) -> None:
    """Fill `numbers`; what is not a whole number of a type that reaches up to `high` is doubtful."""
    data, kinds, starts, stops, rows, doubtful = tokens
    for index in range(len(kinds)):
        if kinds[index] <= NULL:
            continue
        start, stop = starts[index], stops[index]
        negative = data[start] == 45
        first = start + 1 if negative else start
        if kinds[index] != INTEGER or stop - first > 19:
            doubtful[rows[index]] = 1
            continue
        size = np.uint64(0)
        for position in range(first, stop):
            size = size * np.uint64(10) + np.uint64(data[position] - 48)
        limit = np.uint64(high) + np.uint64(negative)
        if size > limit:
            doubtful[rows[index]] = 1
            continue
        numbers[index] = np.int64(-size) if negative else np.int64(size)


@borrowing
def _read_doubles(
    tokens: Tokens,
    single: bool,
    numbers: NDArray[np.float64],
    hard: NDArray[np.bool_],
) -> int:
    """Fill `numbers` where one multiplication or division is exact; how many are left as `hard`."""
    data, kinds, starts, stops, rows, doubtful = tokens
    left = 0
    for index in range(len(kinds)):
        if kinds[index] <= NULL:
            continue
        if kinds[index] not in (INTEGER, FRACTION):
            doubtful[rows[index]] = 1
            continue
        start = starts[index]
        negative = data[start] == 45
        mantissa, power, _ = _read_number(data, start + 1 if negative else start, stops[index])
        if mantissa == 0:
            # Written without a point, −0 is the whole number 0.
            numbers[index] = -0.0 if negative and kinds[index] == FRACTION else 0.0
            continue
        if single or mantissa < 0 or mantissa > _EXACT_MANTISSA or abs(power) > _EXACT_POWER:
            hard[index] = True
            left += 1
            continue
        number = mantissa * _POWERS[power] if power >= 0 else mantissa / _POWERS[-power]
        numbers[index] = -number if negative else number
    return left


@borrowing
def _read_number(data: Octets, position: int, stop: int) -> tuple[int, int, int]:
    """Mantissa (−1: too long), power of ten, and the position after the number without sign at `position`."""
    mantissa = 0
    digits = 0
    power = 0
    after_point = 0
    while position < stop:
        byte = data[position]
        if 48 <= byte <= 57:
            mantissa = mantissa * 10 + (byte - 48)
            digits += 1 if mantissa else 0
            power -= after_point
        elif byte == 46 and not after_point:
            after_point = 1
        else:
            break
        if digits > _MAX_DIGITS:
            return -1, 0, position
        position += 1
    if position < stop and data[position] | 32 == 101:
        position += 1
        sign = -1 if position < stop and data[position] == 45 else 1
        if position < stop and data[position] in (43, 45):
            position += 1
        exponent = 0
        while position < stop and 48 <= data[position] <= 57:
            exponent = min(exponent * 10 + (data[position] - 48), 100_000)
            position += 1
        power += sign * exponent
    return mantissa, power, position


@borrowing
def _read_decimals(
    tokens: Tokens,
    scale: int,
    precision: int,
    numbers: NDArray[np.int64],
) -> None:
    """Fill `numbers` with 128 bits each; what is longer than 18 digits is doubtful."""
    data, kinds, starts, stops, rows, doubtful = tokens
    for index in range(len(kinds)):
        if kinds[index] <= NULL:
            continue
        start, stop = starts[index], stops[index]
        negative = stop > start and data[start] == 45
        first = start + 1 if negative else start
        # A string may have any content.
        good = kinds[index] in (INTEGER, FRACTION) or (
            kinds[index] == STRING and first < stop and 48 <= data[first] <= 57 and 48 <= data[stop - 1] <= 57
        )
        mantissa, power, after = _read_number(data, first, stop)
        shift = power + scale
        if not good or mantissa < 0 or after != stop or abs(shift) > _MAX_DIGITS:
            doubtful[rows[index]] = 1
            continue
        if shift >= 0:
            fits = mantissa <= (_TENS[precision] - 1) // _TENS[shift]
            number = mantissa * _TENS[shift] if fits else 0
        else:
            number = (mantissa + _TENS[-shift] // 2) // _TENS[-shift]
            fits = number < _TENS[precision]
        if not fits:
            doubtful[rows[index]] = 1
            continue
        numbers[index, 0] = -number if negative else number
        numbers[index, 1] = -1 if negative and number else 0
