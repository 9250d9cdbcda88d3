"""Values of a table's records as rows: JSON documents, bare or inside of change events.

A topic that capture writes, ours or Debezium's, holds events `{"before": …, "after": …, "op": …}`: the row is
what stands in `after`, and an event without it deletes. Which of the two a value is, is seen from the value
itself: a table is declared by the columns of its rows either way, and a bad value decides about no other.
"""

from __future__ import annotations

from functools import reduce
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.values import value_parser

EVENT: Final = ("before", "after", "op", "source")
"""What every change event has; a row with all these names is not expected of anybody."""
OPERATIONS: Final = pa.array(["c", "r", "u", "d", "t"])
"""Created, read by a snapshot, updated, deleted, truncated."""
GONE: Final = pa.array(["d", "t"])
"""Events that say that a row is gone: deleted, or truncated."""


class ReadRows(NamedTuple):
    """Rows, each with whether it is gone and why it could not be read."""

    rows: pa.StructArray
    deleted: pa.BooleanArray
    errors: pa.StringArray | None
    """None when all could be read."""


class RowReader:
    """Reads values as rows of one type."""

    def __init__(self, row_type: pa.StructType, *, time_unit: str = "auto") -> None:
        event_type = pa.struct([("after", row_type), ("op", pa.string())])
        self._rows = value_parser("json", row_type, time_unit=time_unit)
        self._events = value_parser("json", event_type, time_unit=time_unit)

    def read(self, values: pa.Array) -> ReadRows:
        """The row in each value, null where there is none, and whether it says that its row is gone."""
        deleted = values.is_null()
        named = _names_events(values)
        if not pc.any(named).as_py():
            parsed = self._rows.parse(values)
            return ReadRows(parsed.values, deleted, parsed.errors)
        events = self._events.parse(_only(named, values))
        operations = pc.struct_field(events.values, [1])
        is_event = pc.is_in(operations, value_set=OPERATIONS)
        if events.errors is not None:
            is_event = pc.or_(is_event, events.errors.is_valid())
        rows = self._rows.parse(_only(pc.invert(is_event), values))
        return ReadRows(
            pc.if_else(is_event, pc.struct_field(events.values, [0]), rows.values),
            pc.or_(deleted, pc.is_in(operations, value_set=GONE)),
            _either(events.errors, rows.errors),
        )


def _names_events(values: pa.Array) -> pa.BooleanArray:
    """Which values hold all names of a change event, wherever they stand."""
    held = [pc.match_substring(values, f'"{name}"') for name in EVENT]
    return reduce(pc.and_, held).fill_null(False)


def _only(chosen: pa.BooleanArray, values: pa.Array) -> pa.Array:
    """The chosen values, and nulls in place of the others."""
    return pc.if_else(chosen, values, pa.scalar(None, values.type))


def _either(one: pa.StringArray | None, other: pa.StringArray | None) -> pa.StringArray | None:
    """The errors of two readings, each of values that the other did not have."""
    if one is None or other is None:
        return other if one is None else one
    return pc.coalesce(one, other)
