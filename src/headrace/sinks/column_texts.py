"""Values as texts, a column at a time: as they are in JSON, texts without quotes.

Arrow writes those of most types. Python takes a hundred times as long for a time, and sees only what Arrow
would write in another form, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.sinks.template import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN: Final = (1e-4, 1e9)
"""Numbers from the first to the second have the same digits and no exponent, whoever writes them."""
_NOTHING: Final = pa.scalar("", pa.large_string())


def texts_of(column: pa.ChunkedArray) -> pa.LargeStringArray:
    """The values as texts; nulls stay nulls.

    >>> texts_of(pa.chunked_array([[1.0, 1e20, None]])).to_pylist()
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


def joined(pieces: Sequence[pa.LargeStringArray | str]) -> pa.LargeStringArray:
    """Row by row the pieces one after the other, where a text is the same for all; null where one is.

    >>> joined(["a", pa.array(["b", None], pa.large_string())]).to_pylist()
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
    texts = pc.if_else(pc.match_substring(texts, "."), texts, joined([texts, ".0"]))
    is_odd = pc.fill_null(pc.invert(is_plain), fill_value=False)
    return pc.replace_with_mask(texts, is_odd, _by_python(values.filter(is_odd)))


def _times(values: pa.TimestampArray) -> pa.LargeStringArray:
    texts = values.cast(pa.timestamp("us")).cast(pa.large_string())
    with_t = pc.binary_replace_slice(texts, 10, 11, "T")
    return with_t if values.type.tz is None else joined([with_t, "Z"])


def _by_python(values: pa.Array) -> pa.LargeStringArray:
    found = values.to_pylist(maps_as_pydicts="lossy")
    return pa.array([None if value is None else text_of(value) for value in found], pa.large_string())
