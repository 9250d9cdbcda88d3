"""Values of a table's records as rows: JSON documents, bare or inside of change events.

A topic that capture writes, ours or Debezium's, holds events `{"before": …, "after": …, "op": …}`: the row is
what stands in `after`, and an event without it deletes. Which of the two a topic holds is seen from its
values, so that a table is declared by the columns of its rows either way.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.values import value_parser

EVENT: Final = frozenset({"before", "after", "op", "source"})
"""What every change event has; a row with all these names is not expected of anybody."""
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

    def __init__(self, row_type: pa.StructType) -> None:
        self._rows = value_parser("json", row_type)
        self._events = value_parser("json", pa.struct([("after", row_type), ("op", pa.string())]))

    def read(self, values: pa.Array) -> ReadRows:
        """The row in each value, null where there is none, and whether it says that its row is gone."""
        deleted = values.is_null()
        if not _holds_events(values):
            parsed = self._rows.parse(values)
            return ReadRows(parsed.values, deleted, parsed.errors)
        parsed = self._events.parse(values)
        gone = pc.is_in(pc.struct_field(parsed.values, [1]), value_set=GONE)
        return ReadRows(pc.struct_field(parsed.values, [0]), pc.or_(deleted, gone), parsed.errors)


def _holds_events(values: pa.Array) -> bool:
    """Whether the values are change events; those of one topic all are, or none is."""
    first = next((value for value in values if value.is_valid), None)
    if first is None:
        return False
    try:
        document = json.loads(first.as_py())
    except ValueError:
        return False
    return isinstance(document, dict) and document.keys() >= EVENT
