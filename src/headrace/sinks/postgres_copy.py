"""PostgreSQL types for Arrow columns, and rows in the formats of COPY: binary or CSV.

PostgreSQL parses the text of a value by the type of its column, so an existing table may have any type that
can hold the values: text goes into uuid, enum or varchar columns, numbers into numeric. If all columns have
the types of Arrow, rows are sent in the binary format, and PostgreSQL parses no text. A tuple in that format
is the number of its fields (two bytes), and for each field its size (four bytes, −1 for null) and its bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv

from headrace.columns.buffers import NULL, Blobs, blobs_of
from headrace.protocol.kernels import borrowing, copy_bytes, octets
from headrace.sinks.rows import to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

INTEGERS: Final = ("smallint", "integer", "bigint")
FRACTIONS: Final = ("numeric", "real", "double precision")
TIMESTAMPS: Final = ("timestamp with time zone", "timestamp without time zone")
DOCUMENTS: Final = ("json", "jsonb")
NOT_TEXT: Final = (*INTEGERS, *FRACTIONS, *TIMESTAMPS, "boolean", "bytea", "date", "interval", "time")
"""Types that do not take text: text in such a column is more likely a mistake."""


def sql_type(kind: pa.DataType) -> str:
    """The type of a new column for values of an Arrow type.

    >>> [sql_type(kind) for kind in (pa.int64(), pa.decimal128(10, 2), pa.list_(pa.string()))]
    ['bigint', 'numeric(10,2)', 'jsonb']
    """
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    for is_kind, name in _TYPES:
        if is_kind(kind):
            return name
    return "text"


def is_compatible(kind: pa.DataType, column: str) -> bool:
    """Whether a column can hold values of an Arrow type; `column` is its type from `format_type`.

    >>> is_compatible(pa.int32(), "bigint"), is_compatible(pa.string(), "bigint")
    (True, False)
    """
    base = column.partition("(")[0].strip() if not column.startswith("timestamp") else _unsized(column)
    usual = sql_type(kind).partition("(")[0]
    if usual in INTEGERS:
        return base in (*INTEGERS, *FRACTIONS)
    if usual in FRACTIONS:
        return base in FRACTIONS
    if usual in ("timestamptz", "timestamp"):
        return base in TIMESTAMPS
    if usual == "jsonb":
        return base in (*DOCUMENTS, "text")
    if usual == "text":
        return base not in NOT_TEXT
    return base == usual


def _unsized(column: str) -> str:
    """`timestamp(3) with time zone` without its precision."""
    before, _, after = column.partition("(")
    return before + after.partition(")")[2] if after else column


def encode_csv(rows: pa.Table) -> memoryview:
    """The rows as CSV for COPY; text is quoted, so that an empty string is not null."""
    columns = [_printable(column) for column in rows.columns]
    out = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(include_header=False))
    return memoryview(out.getvalue())


def encode_composite(row: pa.Table) -> bytes:
    r"""One row as a composite literal of PostgreSQL: CSV in which a backslash is an escape.

    >>> encode_composite(pa.table({"name": ['5" \\ nail'], "note": [""], "count": [None]}))
    b'("5"" \\\\ nail","",)'
    """
    line = bytes(encode_csv(row)).removesuffix(b"\n")
    return b"(%b)" % line.replace(b"\\", b"\\\\")


def _printable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a form that Arrow can write; bytes, durations and documents become text."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _texts(column, lambda value: "\\x" + value.hex())
    if pa.types.is_duration(kind):
        return _texts(column, lambda value: f"{value.total_seconds():f} seconds")
    if pa.types.is_nested(kind):
        return _texts(column, to_json)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # The session's time zone is UTC, and Arrow takes ten times as long to write a time with its zone.
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


SIZE_BYTES: Final = 4


@borrowing
def write_field(values: Blobs, output: Octets, positions: NDArray[np.int64]) -> None:
    """Write the next field of each tuple at its position, and advance the position."""
    for row in range(len(positions)):
        size = values.sizes[row]
        position = positions[row]
        for index in range(SIZE_BYTES):
            output[position + index] = (size >> 8 * (SIZE_BYTES - 1 - index)) & 0xFF
        position += SIZE_BYTES
        if size > 0:
            copy_bytes(output, position, values.data, values.starts[row], size)
            position += size
        positions[row] = position


HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER: Final = struct.pack(">h", -1)
COUNT: Final = struct.Struct(">h")
"""The number of fields of a tuple."""
DAYS: Final = 10_957
"""Days from the epoch of Arrow (1970) to that of PostgreSQL (2000)."""
DAY_US: Final = 86_400_000_000

FIXED: Final = {
    pa.bool_(): ("boolean", ">i1"),
    pa.int8(): ("smallint", ">i2"),
    pa.int16(): ("smallint", ">i2"),
    pa.int32(): ("integer", ">i4"),
    pa.int64(): ("bigint", ">i8"),
    pa.float32(): ("real", ">f4"),
    pa.float64(): ("double precision", ">f8"),
    pa.date32(): ("date", ">i4"),
    pa.timestamp("us", "UTC"): ("timestamp with time zone", ">i8"),
    pa.timestamp("us"): ("timestamp without time zone", ">i8"),
}
"""The column type and the binary format of each Arrow type of fixed size."""


def is_binary_compatible(kind: pa.DataType, column: str) -> bool:
    """Whether values of an Arrow type can be sent to a column in the binary format.

    >>> is_binary_compatible(pa.int64(), "bigint"), is_binary_compatible(pa.int32(), "bigint")
    (True, False)
    """
    if kind in FIXED:
        return bool(FIXED[kind][0] == column)
    if pa.types.is_string(kind):
        return column == "text" or column.startswith("character varying")
    return bool(pa.types.is_binary(kind)) and column == "bytea"


def encode_binary(rows: pa.Table) -> memoryview:
    """The rows in COPY's binary format.

    >>> bytes(encode_binary(pa.table({"n": pa.array([7, None], pa.int16())})))[19:]
    b'\\x00\\x01\\x00\\x00\\x00\\x02\\x00\\x07\\x00\\x01\\xff\\xff\\xff\\xff\\xff\\xff'
    """
    columns = [_blobs(column.combine_chunks()) for column in rows.columns]
    sizes = COUNT.size + SIZE_BYTES * len(columns) + sum(np.maximum(each.sizes, 0) for each in columns)
    ends = len(HEADER) + np.cumsum(sizes)
    starts = ends - sizes
    output = np.empty(int(ends[-1]) + len(TRAILER), np.uint8)
    output[: len(HEADER)] = octets(HEADER)
    for index, byte in enumerate(COUNT.pack(len(columns))):
        output[starts + index] = byte
    positions = starts + COUNT.size
    for values in columns:
        write_field(values, output, positions)
    output[-len(TRAILER) :] = octets(TRAILER)
    return output.data


def _blobs(column: pa.Array) -> Blobs:
    if column.type not in FIXED:
        return blobs_of(column, "")
    form = np.dtype(FIXED[column.type][1])
    sizes = np.full(len(column), form.itemsize, np.int64)
    if column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = NULL
    values = _numbers(column).astype(form)
    return Blobs(octets(values.tobytes()), np.arange(len(column)) * form.itemsize, sizes)


def _numbers(column: pa.Array) -> NDArray[np.generic]:
    """The values as numbers, times relative to PostgreSQL's epoch; zero for a null."""
    if pa.types.is_timestamp(column.type):
        return _counted(column.cast(pa.int64()), DAYS * DAY_US)
    if pa.types.is_date(column.type):
        return _counted(column.cast(pa.int32()), DAYS)
    plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    numbers: NDArray[np.generic] = plain.fill_null(0).to_numpy()
    return numbers


def _counted(column: pa.Array, beginning: int) -> NDArray[np.generic]:
    """Times relative to another epoch; those before PostgreSQL's range stay invalid."""
    counts = column.fill_null(0).to_numpy()
    # The lowest number is -infinity in PostgreSQL.
    earliest = np.iinfo(counts.dtype).min + beginning + 1
    counted: NDArray[np.generic] = np.maximum(counts, earliest) - beginning
    return counted
