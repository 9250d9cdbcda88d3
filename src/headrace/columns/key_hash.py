"""Keys as bytes, and a hash of them that nobody can find many collisions of.

The hash is SipHash-1-3. Where its seed is secret, or at least chosen by chance, a client that picks its keys
cannot make them collide. Where the seed is known, its 256 bits of internal state still make that expensive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

NULL: Final = np.uint64(0x5BD1E9955BD1E995)
"""The hash of a part of a key that is null."""
SAMPLE: Final = 4096
"""Of so many values it is seen whether they repeat: finding equal values takes longer than to hash them."""


class Keys(NamedTuple):
    """Keys as bytes, one behind the other: key `i` lies between `offsets[i]` and `offsets[i + 1]`."""

    data: Octets
    offsets: Numbers


def key_bytes(columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """The keys that columns make together, null where a part of one is null.

    The bytes of a single column are its own; of several, each part has its length before it.
    """
    parts = [_column_bytes(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    pieces = [piece for part in parts for piece in (_sizes(part), part)]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _column_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    kind = column.type
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return column.cast(pa.large_binary())
    if pt.is_boolean(kind):
        return _column_bytes(column.cast(pa.int8()))
    return _fixed_bytes(column, kind.bit_width // 8)


def _fixed_bytes(column: pa.Array, width: int) -> pa.LargeBinaryArray:
    offsets = np.arange(len(column) + 1, dtype=np.int64) * width
    data = pa.py_buffer(b"")
    if len(column):
        data = column.buffers()[1].slice(column.offset * width, len(column) * width)
    valid = None
    if column.null_count:
        bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        valid = pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.large_binary(), len(column), [valid, pa.py_buffer(offsets), data])


def _sizes(part: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return _fixed_bytes(pc.binary_length(part).cast(pa.int32()), 4)


def keys_of(array: pa.LargeBinaryArray) -> Keys:
    """The bytes of an array as the compiled loops take them; a null has none."""
    if not len(array):
        return Keys(_frozen(b"", np.uint8), _frozen(bytes(8), np.int64))
    _, offsets, data = array.buffers()
    first, end = array.offset, array.offset + len(array) + 1
    return Keys(_frozen(data or b"", np.uint8), _frozen(offsets, np.int64)[first:end])


def _frozen(buffer: pa.Buffer | bytes, kind: type) -> NDArray[Any]:
    # Never writable, wherever it comes from: one type, so that each loop is compiled once.
    array: NDArray[Any] = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array


def row_hashes(rows: pa.Table, keys: Sequence[str], seed: Hashes) -> Numbers:
    """The hash of each row's key, as a signed number. Null is a value as any other; without keys all are 0.

    >>> seed = np.array([1, 2], np.uint64)
    >>> one, other, same = row_hashes(pa.table({"a": ["x", None, "x"], "b": [1, 1, 1]}), ["a", "b"], seed)
    >>> bool(one == same), bool(one == other)
    (True, False)
    """
    words = [_column_hashes(rows[key], seed) for key in keys]
    if not words:
        return np.zeros(rows.num_rows, np.int64)
    if len(words) == 1:
        return words[0].view(np.int64)
    joined = np.ascontiguousarray(np.stack(words, axis=1))
    width = 8 * len(words)
    offsets = np.arange(rows.num_rows + 1, dtype=np.int64) * width
    hashes = np.empty(rows.num_rows, np.uint64)
    sip_hash(
        Keys(_frozen(pa.py_buffer(joined), np.uint8), _frozen(pa.py_buffer(offsets), np.int64)), seed, hashes
    )
    return hashes.view(np.int64)


def distinct_hashes(rows: pa.Table, keys: Sequence[str], seed: Hashes) -> Numbers:
    """The hashes of all keys that rows have, sorted, each once."""
    if len(keys) == 1:
        hashes = _value_hashes(rows[keys[0]], seed)[0].view(np.int64)
    else:
        hashes = row_hashes(rows, keys, seed)
    ordered = np.sort(hashes)
    # `np.unique` hashes numbers, which takes twenty times as long as sorting.
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def _column_hashes(column: pa.ChunkedArray, seed: Hashes) -> Hashes:
    """The hash of each value."""
    hashes, indices = _value_hashes(column, seed)
    return hashes[indices]


def _value_hashes(column: pa.ChunkedArray, seed: Hashes) -> tuple[Hashes, NDArray[np.integer[Any]] | slice]:
    """The hashes of values, and which of them each row has."""
    single = column.combine_chunks()
    single = pa.concat_arrays(single.chunks) if isinstance(single, pa.ChunkedArray) else single
    if not _repeats(single):
        return _hashes(single, seed), slice(None)
    encoded = single.dictionary_encode(null_encoding="encode")
    return _hashes(encoded.dictionary, seed), encoded.indices.to_numpy()


def _repeats(values: pa.Array) -> bool:
    """Whether values occur several times, as far as a sample tells: then each is hashed once."""
    sample = values.slice(0, SAMPLE)
    return 2 * len(sample.dictionary_encode().dictionary) < len(sample)


def _hashes(values: pa.Array, seed: Hashes) -> Hashes:
    hashes = np.empty(len(values), np.uint64)
    sip_hash(keys_of(_column_bytes(_normalized(values))), seed, hashes)
    if values.null_count:
        hashes[pc.is_null(values).to_numpy(zero_copy_only=False)] = NULL
    return hashes


def _normalized(values: pa.Array) -> pa.Array:
    """Values that compare as equal have the same bytes: NaN has many forms, and 0 has two."""
    if not pt.is_floating(values.type):
        return values
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))


@borrowing
def _rotated(value: np.uint64, bits: int) -> np.uint64:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@borrowing
def _sip_round(
    a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """One round of SipHash over its state of four words."""
    a += b
    c += d
    b = _rotated(b, 13) ^ a
    d = _rotated(d, 16) ^ c
    a = _rotated(a, 32)
    c += b
    a += d
    b = _rotated(b, 17) ^ c
    d = _rotated(d, 21) ^ a
    return a, b, _rotated(c, 32), d


@borrowing
def sip_hash(keys: Keys, seed: Hashes, hashes: Hashes) -> None:
    """Fill `hashes` with the SipHash-1-3 of each key under the two words of `seed`."""
    data = keys.data
    for row in range(len(hashes)):
        position, end = keys.offsets[row], keys.offsets[row + 1]
        size = np.uint64(end - position)
        a, b = np.uint64(0x736F6D6570736575) ^ seed[0], np.uint64(0x646F72616E646F6D) ^ seed[1]
        c, d = np.uint64(0x6C7967656E657261) ^ seed[0], np.uint64(0x7465646279746573) ^ seed[1]
        is_last = False
        while not is_last:
            is_last = end - position < 8
            word = size << np.uint64(56) if is_last else np.uint64(0)
            for index in range(min(8, end - position)):
                word |= np.uint64(data[position + index]) << np.uint64(8 * index)
            d ^= word
            a, b, c, d = _sip_round(a, b, c, d)
            a ^= word
            position += 8
        c ^= np.uint64(0xFF)
        for _ in range(3):
            a, b, c, d = _sip_round(a, b, c, d)
        hashes[row] = a ^ b ^ c ^ d
