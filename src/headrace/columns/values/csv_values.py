"""CSV values as typed columns: each value is one record with the fields of the type, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from headrace.columns.values.csv_reference import CsvReference
from headrace.columns.values.csv_scanner import CsvScanner
from headrace.columns.values.errors import UnsupportedType
from headrace.columns.values.raw_values import raw_values
from headrace.columns.values.reference_reading import finish
from headrace.columns.values.shape import shape_of

if TYPE_CHECKING:
    from headrace.columns.values.parser import Parsed
    from headrace.columns.values.time_rules import TimeRules


class CsvParser:
    """Parses records into structs of `type_`; `rules` say what its times mean."""

    def __init__(self, type_: pa.DataType, rules: TimeRules, delimiter: str = ",", quote: str = '"') -> None:
        for name, mark in (("delimiter", delimiter), ("quote", quote)):
            if len(mark) != 1 or not mark.isascii() or mark in "\r\n":
                raise UnsupportedType(f"the {name} of CSV is one ASCII character, not {mark!r}")
        self._type = type_
        self._rules = rules
        # CSV has no other form of bytes than the text itself.
        texts = pa.struct([_as_text(field) for field in type_])
        self._scanner = CsvScanner(shape_of(texts), delimiter, quote, rules.min_csv_digits)
        self._reference = CsvReference(texts, rules, delimiter, quote)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The records, or for each value that is none the reason."""
        scan = self._scanner.scan(*raw_values(values))
        parsed = finish(scan, values, self._rules, self._reference)
        return parsed._replace(values=parsed.values.cast(self._type))


def _as_text(field: pa.Field) -> pa.Field:
    return field.with_type(pa.string()) if pt.is_binary(field.type) else field
