"""CSV values one at a time: the reference for the fast path, and where error messages come from.

As RFC 4180 has it: fields in quotes may hold delimiters, line breaks, and quotes written twice. A field with
nothing in it is null; a line break at the end of the value is overlooked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow.types as pt

from headrace.columns.values.errors import BadValue, mismatch
from headrace.columns.values.leaf_reference import leaf_reader
from headrace.columns.values.tokens import FALSE, FRACTION, INTEGER, STRING, TRUE
from headrace.columns.values.utf8 import decoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headrace.columns.values.time_rules import TimeRules

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
        """The record as Python objects that Arrow takes; `BadValue` says what is wrong with it and where."""
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
        """Kind and text of a field, by what its column is for."""
        if pt.is_boolean(type_):
            return {"true": TRUE, "false": FALSE}.get(text.lower(), STRING), text
        is_time = pt.is_timestamp(type_) and len(text) >= self._min_time_digits
        if is_time or pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_):
            if _INTEGER.fullmatch(text):
                return INTEGER, str(int(text))
            if not is_time and _FRACTION.fullmatch(text):
                return FRACTION, text
        return STRING, text
