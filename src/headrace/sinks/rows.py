"""Operations on batches of rows: the last row of each key, JSON and text."""

from __future__ import annotations

import base64
import functools
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_INDEX: Final = "_headrace_index"
_NULL: Final = "_headrace_null"


def last_of_each_key(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """The indexes of the last row of each key, in order.

    A null is not equal to a null, as in SQL.

    >>> last_of_each_key(pa.table({"k": ["a", None, "b", None, "a"]}), ["k"]).to_pylist()
    [1, 2, 3, 4]
    """
    everything = pa.array(np.arange(len(rows)))
    if not key:
        return everything
    names = list(key)
    numbered = rows.select(names).append_column(_INDEX, everything)
    if any(rows[name].null_count for name in names):
        is_null = functools.reduce(pc.or_, [pc.is_null(rows[name]) for name in names])
        numbered = numbered.append_column(_NULL, pc.if_else(is_null, everything, None))
        names.append(_NULL)
    last = numbered.group_by(names, use_threads=False).aggregate([(_INDEX, "max")])[f"{_INDEX}_max"]
    if len(last) == len(rows):
        return everything
    return pc.take(last.combine_chunks(), pc.sort_indices(last))


def sort_by_key(rows: pa.Table, key: Sequence[str], indexes: pa.Array) -> pa.Array:
    """The indexes sorted by key, so that the index of the target is accessed sequentially.

    >>> sort_by_key(pa.table({"k": ["c", "a", "b"]}), ["k"], pa.array([0, 1])).to_pylist()
    [1, 0]
    """
    if not key or any(pa.types.is_nested(rows.schema.field(name).type) for name in key):
        return indexes
    keys = rows.select(list(key)).take(indexes)
    return indexes.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in key]))


def json_documents(rows: pa.Table) -> Iterator[str]:
    """Each row as a JSON document, in the format of topics: times in ISO 8601, bytes in base64.

    >>> list(json_documents(pa.table({"k": ["a"], "b": [b"tea"]})))
    ['{"k": "a", "b": "dGVh"}']
    """
    return (to_json(row) for row in rows.to_pylist(maps_as_pydicts="lossy"))


def to_json(value: Any) -> str:
    """A Python value from Arrow as JSON; NaN and infinities become strings."""
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=_plain, ensure_ascii=False)


def format_value(value: Any) -> str:
    """A value that is not null as text.

    >>> format_value("tea"), format_value(1.5), format_value(True), format_value([1, 2])
    ('tea', '1.5', 'true', '[1, 2]')
    """
    if isinstance(value, str):
        return value
    text = to_json(value)
    return str(json.loads(text)) if text.startswith('"') else text


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case _:
            return str(value)


def _finite(value: Any) -> Any:
    """The value with strings ("NaN", "Infinity") for numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


PLAIN: Final = (1e-4, 1e9)
"""In this range, Arrow and Python format a number with the same digits and no exponent."""
_NOTHING: Final = pa.scalar("", pa.large_string())


def format_texts(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """The values of a column as text, as in JSON but without quotes; nulls stay null.

    Arrow formats most types. Python would take a hundred times as long for a time, and gets only the values
    that Arrow would format differently.

    >>> format_texts(pa.chunked_array([[1.0, 1e20, None]])).to_pylist()
    ['1.0', '1e+20', None]
    """
    values = _whole(column)
    kind = values.type
    if pa.types.is_floating(kind):
        return _numbers(values.cast(pa.float64()))
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _times(values)
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.large_string())
    return _by_python(values)


def concat_texts(pieces: Sequence[pa.LargeStringArray | str]) -> pa.LargeStringArray:
    """The concatenation of columns and constant strings, row by row; null if a piece is null.

    >>> concat_texts(["a", pa.array(["b", None], pa.large_string())]).to_pylist()
    ['ab', None]
    """
    scalars = [pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*scalars, _NOTHING)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _numbers(values: pa.DoubleArray) -> pa.LargeStringArray:
    size = pc.abs(values)
    is_plain = pc.and_(pc.greater_equal(size, PLAIN[0]), pc.less(size, PLAIN[1]))
    is_plain = pc.or_(is_plain, pc.equal(size, 0.0))
    texts = values.cast(pa.large_string())
    texts = pc.if_else(pc.match_substring(texts, "."), texts, concat_texts([texts, ".0"]))
    is_odd = pc.fill_null(pc.invert(is_plain), fill_value=False)
    return pc.replace_with_mask(texts, is_odd, _by_python(values.filter(is_odd)))


def _times(values: pa.TimestampArray) -> pa.LargeStringArray:
    texts = values.cast(pa.timestamp("us")).cast(pa.large_string())
    with_t = pc.binary_replace_slice(texts, 10, 11, "T")
    return with_t if values.type.tz is None else concat_texts([with_t, "Z"])


def _by_python(values: pa.Array) -> pa.LargeStringArray:
    found = values.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if value is None else format_value(value) for value in found], pa.large_string())
