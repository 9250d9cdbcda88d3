"""JSON values as typed columns.

All values go through one compiled pass; those that it does not vouch for are read again, one at a time, by
the reference parser, which gives their value or the reason why there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.columns.values.json_reference import JsonReference
from headrace.columns.values.json_scanner import JsonScanner
from headrace.columns.values.raw_values import raw_values
from headrace.columns.values.reference_reading import finish
from headrace.columns.values.shape import shape_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.columns.values.parser import Parsed
    from headrace.columns.values.time_rules import TimeRules


class JsonParser:
    """Parses JSON objects into structs of `type_`; `rules` say what its times mean."""

    def __init__(self, type_: pa.DataType, rules: TimeRules) -> None:
        self._rules = rules
        self._scanner = JsonScanner(shape_of(type_))
        self._reference = JsonReference(type_, rules)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """The objects, or for each value that is none the reason."""
        scan = self._scanner.scan(*raw_values(values))
        return finish(scan, values, self._rules, self._reference)
