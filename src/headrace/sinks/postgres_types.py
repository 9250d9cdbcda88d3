"""Columns between Arrow and PostgreSQL: which type a table gets, which it may have, and rows as CSV for COPY.

PostgreSQL parses the text of a value by the type of its column. So a table that was there before may have
any type that can hold what the rows say: texts go into uuid, enum or varchar columns, numbers into numeric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.csv

from headrace.sinks.rows import json_of

if TYPE_CHECKING:
    from collections.abc import Callable

WHOLE: Final = ("smallint", "integer", "bigint")
BROKEN: Final = ("numeric", "real", "double precision")
TIMES: Final = ("timestamp with time zone", "timestamp without time zone")
DOCUMENTS: Final = ("json", "jsonb")
NOT_FOR_TEXT: Final = (*WHOLE, *BROKEN, *TIMES, "boolean", "bytea", "date", "interval", "time")
"""What a text is not put into: that the rows have texts there is more likely a mistake."""


def sql_type(kind: pa.DataType) -> str:
    """The type of a column that is made for values of an Arrow type.

    >>> [sql_type(kind) for kind in (pa.int64(), pa.decimal128(10, 2), pa.list_(pa.string()))]
    ['bigint', 'numeric(10,2)', 'jsonb']
    """
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    for is_kind, name in _TYPES:
        if is_kind(kind):
            return name
    return "text"


def is_suitable(kind: pa.DataType, column: str) -> bool:
    """Whether values of an Arrow type can go into a column of that type, as `format_type` calls it.

    >>> is_suitable(pa.int32(), "bigint"), is_suitable(pa.string(), "bigint")
    (True, False)
    """
    base = column.partition("(")[0].strip() if not column.startswith("timestamp") else _unsized(column)
    made = sql_type(kind).partition("(")[0]
    if made in WHOLE:
        return base in (*WHOLE, *BROKEN)
    if made in BROKEN:
        return base in BROKEN
    if made in ("timestamptz", "timestamp"):
        return base in TIMES
    if made == "jsonb":
        return base in (*DOCUMENTS, "text")
    if made == "text":
        return base not in NOT_FOR_TEXT
    return base == made


def _unsized(column: str) -> str:
    """`timestamp(3) with time zone` without its precision."""
    before, _, after = column.partition("(")
    return before + after.partition(")")[2] if after else column


def csv_of(rows: pa.Table) -> memoryview:
    """The rows as COPY takes them: texts in quotes, so that an empty one is not a null."""
    columns = [_printable(column) for column in rows.columns]
    out = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(include_header=False))
    return memoryview(out.getvalue())


def composite_of(row: pa.Table) -> bytes:
    r"""One row as PostgreSQL writes a composite value: CSV in which a backslash is an escape.

    >>> composite_of(pa.table({"name": ['5" \\ nail'], "note": [""], "count": [None]}))
    b'("5"" \\\\ nail","",)'
    """
    line = bytes(csv_of(row)).removesuffix(b"\n")
    return b"(%b)" % line.replace(b"\\", b"\\\\")


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as Arrow can write it; bytes, spans of time and documents become texts."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _texts(column, lambda value: "\\x" + value.hex())
    if pa.types.is_duration(kind):
        return _texts(column, lambda value: f"{value.total_seconds():f} seconds")
    if pa.types.is_nested(kind):
        return _texts(column, json_of)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The session's zone is UTC. Arrow takes ten times as long to write a time with its zone.
        return column.cast(pa.timestamp(kind.unit))
    return column.cast(pa.string()) if pa.types.is_null(kind) else column


def _texts(column: pa.ChunkedArray, text: Callable[[Any], str]) -> pa.ChunkedArray:
    values = column.to_pylist(maps_as_pydicts="lossy")
    return pa.chunked_array(
        [pa.array([None if value is None else text(value) for value in values], pa.string())]
    )


_TYPES: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "smallint"),
    (pa.types.is_int16, "smallint"),
    (pa.types.is_int32, "integer"),
    (pa.types.is_int64, "bigint"),
    (pa.types.is_float32, "real"),
    (pa.types.is_float64, "double precision"),
    (pa.types.is_date, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamptz"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_duration, "interval"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "bytea"),
    (pa.types.is_nested, "jsonb"),
)
