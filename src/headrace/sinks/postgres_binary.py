"""Rows in COPY's binary form, for columns of PostgreSQL that hold just what Arrow has.

PostgreSQL parses no text then, which is most of the work of a COPY of numbers and times. Where one column is
of another type (`numeric`, `uuid`, `jsonb`, …) the rows go as CSV.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.blobs import NULL, Blobs, blobs_of
from headrace.protocol.kernels import octets
from headrace.sinks.postgres_kernels import SIZE_BYTES, write_field

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER: Final = struct.pack(">h", -1)
COUNT: Final = struct.Struct(">h")
"""How many fields a tuple has."""
DAYS: Final = 10_957
"""From 1970, where Arrow begins to count, to 2000, where PostgreSQL does."""
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
"""The column that an Arrow type fits as it is, and the form of its values."""


def is_binary(kind: pa.DataType, column: str) -> bool:
    """Whether values of an Arrow type go into a column of that type, as `format_type` calls it, as they are.

    >>> is_binary(pa.int64(), "bigint"), is_binary(pa.int32(), "bigint"), is_binary(pa.string(), "uuid")
    (True, False, False)
    """
    if kind in FIXED:
        return bool(FIXED[kind][0] == column)
    if pa.types.is_string(kind):
        return column == "text" or column.startswith("character varying")
    return bool(pa.types.is_binary(kind)) and column == "bytea"


def binary_of(rows: pa.Table) -> memoryview:
    """The rows as COPY takes them with `FORMAT binary`.

    >>> bytes(binary_of(pa.table({"n": pa.array([7, None], pa.int16())})))[19:]
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
    """The values as numbers, times as PostgreSQL counts them; a zero for a null."""
    if pa.types.is_timestamp(column.type):
        return _counted(column.cast(pa.int64()), DAYS * DAY_US)
    if pa.types.is_date(column.type):
        return _counted(column.cast(pa.int32()), DAYS)
    plain = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
    numbers: NDArray[np.generic] = plain.fill_null(0).to_numpy()
    return numbers


def _counted(column: pa.Array, beginning: int) -> NDArray[np.generic]:
    """Times counted from there on. The earliest are none of PostgreSQL's, and stay so: it refuses them."""
    counts = column.fill_null(0).to_numpy()
    # One more than the lowest number, which to PostgreSQL is minus infinity.
    earliest = np.iinfo(counts.dtype).min + beginning + 1
    counted: NDArray[np.generic] = np.maximum(counts, earliest) - beginning
    return counted
