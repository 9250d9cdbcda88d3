"""Single values as Python objects by the rules of Spark's `from_json`: the reference for types without parts.

A reader takes the kind of a token and its text, and gives None for what is not of its type.
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

from headrace.columns.values.time_reference import read_date, read_timestamp
from headrace.columns.values.time_rules import epoch_microseconds
from headrace.columns.values.tokens import FALSE, FRACTION, INTEGER, STRING, TRUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.columns.values.time_rules import TimeRules

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
        # Longer than any of them, and quicker refused than read.
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
        # By way of a double it could be rounded twice.
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
