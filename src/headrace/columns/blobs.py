"""Columns of text or bytes, and of headers, as spans of one buffer: what the compiled loops take.

Whatever the type (`string`, `binary`, their large and view forms), a slice of a larger array or not, the
loops see one layout, and so are compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns.errors import UnfitRows
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

NULL: Final = -1


class Blobs(NamedTuple):
    """Pieces of `data`: where each begins and how long it is, −1 for null."""

    data: Octets
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class HeaderBlobs(NamedTuple):
    """The headers of rows: those of row `r` are numbered from `firsts[r]` to `firsts[r + 1]`."""

    firsts: NDArray[np.int64]
    names: Blobs
    values: Blobs


def blobs_of(column: pa.Array, name: str) -> Blobs:
    """The values of a column of text or bytes, without a copy of them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return blobs_of(column.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return null_blobs(len(column))
    if not _is_blob(kind):
        raise UnfitRows(
            f"the column {name} is of type {kind}, and a record holds bytes: "
            "make it a string or binary column"
        )
    plain = column.cast(pa.large_binary())
    _, offset_buffer, data = plain.buffers()
    count = len(plain)
    if count == 0:
        return null_blobs(0)
    offsets = np.frombuffer(offset_buffer, np.int64)[plain.offset : plain.offset + count + 1]
    sizes = np.diff(offsets)
    if plain.null_count:
        sizes[plain.is_null().to_numpy(zero_copy_only=False)] = NULL
    return Blobs(octets(data if data is not None else b""), offsets[:-1].copy(), sizes)


def null_blobs(count: int) -> Blobs:
    """As many nulls."""
    return Blobs(octets(b""), np.zeros(count, np.int64), np.full(count, NULL, np.int64))


def header_blobs_of(column: pa.Array) -> HeaderBlobs:
    """The headers in a column of lists of names and values; null and the empty list both mean none."""
    kind = column.type
    if not (_is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2):
        raise UnfitRows(
            f"the column headers is of type {kind}: make it a list of structs of a key (string) "
            "and a value (binary)"
        )
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    firsts = np.zeros(len(column) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    pairs = column.flatten()
    names, values = pairs.flatten()
    if pairs.null_count or names.null_count:
        raise UnfitRows("a row has a header without a name: give every header a key, or leave it out")
    return HeaderBlobs(firsts, blobs_of(names, "headers.key"), blobs_of(values, "headers.value"))


def no_headers(count: int) -> HeaderBlobs:
    """As many rows without headers."""
    return HeaderBlobs(np.zeros(count + 1, np.int64), null_blobs(0), null_blobs(0))


def _is_blob(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_large_string,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
