"""Versions of rows as an Arrow table: made of changes, sorted, merged, and freed of what nobody can ask for.

The first columns say whose version it is, since when it counts, and where it stands in the topic; the others
hold the row without its key, under numbers, because users may name their columns as they like.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.key_hash import keys_of
from headrace.tables.kernels import Order, hash_keys, mark_needed, merge_orders

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.tables.definition import Definition

SYSTEM: Final = (
    ("hash", pa.uint64()),
    ("key", pa.large_binary()),
    ("valid_from", pa.int64()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("deleted", pa.int8()),
)


def version_schema(definition: Definition) -> pa.Schema:
    """The columns of the versions of a table."""
    values = [(f"c{index}", stored_type(field.type)) for index, field in enumerate(definition.columns)]
    return pa.schema([*SYSTEM, *values])


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column in files."""
    # All texts of a large table are more than offsets of 32 bits can count.
    if pt.is_string(kind):
        return pa.large_string()
    return pa.large_binary() if pt.is_binary(kind) else kind


def version_table(
    schema: pa.Schema,
    *,
    keys: pa.LargeBinaryArray,
    valid_from: pa.Int64Array,
    partition: int,
    offsets: pa.Int64Array,
    deleted: pa.BooleanArray,
    values: list[pa.Array],
) -> pa.Table:
    """Versions in the order in which they were given."""
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys_of(keys), hashes)
    columns = [
        pa.array(hashes),
        keys,
        valid_from,
        pa.array(np.full(len(keys), partition, np.int32)),
        offsets,
        deleted.cast(pa.int8()),
        *values,
    ]
    return pa.Table.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def sorted_versions(versions: pa.Table) -> pa.Table:
    """The versions in the order of files; those that are given are in the order of the topic."""
    versions = versions.combine_chunks()
    order = order_of(versions)
    places = np.lexsort((order.valid_from, order.hashes))  # stable: equal ones stay in the topic's order
    return versions.take(pa.array(places))


def merged_versions(one: pa.Table, other: pa.Table) -> pa.Table:
    """All versions of two sorted tables, sorted."""
    taken = np.empty(one.num_rows + other.num_rows, np.int64)
    count = merge_orders(order_of(one), order_of(other), taken)
    return pa.concat_tables([one, other]).combine_chunks().take(pa.array(taken[:count]))


def needed_versions(versions: pa.Table, horizon_us: int) -> pa.Table:
    """The versions that can count at a time from `horizon_us` on."""
    needed = np.empty(versions.num_rows, np.bool_)
    order = order_of(versions)
    deleted = column_numbers(versions, "deleted", np.int8)
    keys = keys_of(single(versions, "key"))
    mark_needed(order.hashes, order.valid_from, deleted, keys, horizon_us, needed)
    return versions if needed.all() else versions.filter(pa.array(needed)).combine_chunks()


def order_of(versions: pa.Table) -> Order:
    """What the versions are sorted by."""
    return Order(
        column_numbers(versions, "hash", np.uint64),
        column_numbers(versions, "valid_from", np.int64),
        column_numbers(versions, "partition", np.int32),
        column_numbers(versions, "offset", np.int64),
    )


def column_numbers(versions: pa.Table, name: str, kind: type) -> NDArray[Any]:
    """A column of numbers as an array that cannot be written, whatever memory it lies in."""
    column = single(versions, name)
    numbers: NDArray[Any] = np.empty(0, kind)
    if len(column):
        numbers = np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]
    numbers.flags.writeable = False
    return numbers


def single(versions: pa.Table, name: str) -> pa.Array:
    """A column as one array, without a copy where it is one already."""
    column = versions.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def newest_us(versions: pa.Table, recorded_us: pa.Int64Array) -> int | None:
    """The newest time of these versions that is no later than their records: a time in the future is none."""
    times = pc.min_element_wise(versions.column("valid_from"), recorded_us)
    newest: int | None = pc.max(times).as_py()
    return newest
