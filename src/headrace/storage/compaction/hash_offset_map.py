"""An offset map as a hash table in compiled code: 24 bytes per key.

A slot has a 128-bit hash and an offset; keys are not stored. The hash is SipHash with a random secret, so
that a client cannot construct collisions. The probability that two of a billion keys collide is 10⁻²⁰.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.kernels import compiled, octets, walk, write_varint
from headrace.protocol.records import KEY_SIZE, KEY_START, OFFSET_DELTA, SIZE, START, TIMESTAMP_DELTA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes
    from headrace.protocol.kernels import Columns, Octets

SLOT_BYTES: Final = 24
LOAD_FACTOR: Final = 0.75
_MAX_VARINT_BYTES: Final = 10
_EMPTY: Final = -1


class HashOffsetMap:
    """An offset map of at most `budget_bytes`, with a load factor of 0.75."""

    def __init__(self, budget_bytes: int, expected_keys: int) -> None:
        slots = max(16, min(budget_bytes // SLOT_BYTES, int(expected_keys / LOAD_FACTOR) + 16))
        self._table = np.zeros((slots, 3), np.int64)
        self._table[:, 2] = _EMPTY
        self._used = np.zeros(1, np.int64)
        self._limit = int(slots * LOAD_FACTOR)
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)

    def walk(self, section: Bytes, count: int) -> NDArray[np.int64]:
        """The columns of the records in a section; raises `CorruptBatch`."""
        return walk(octets(section), count)

    def add(self, section: Bytes, columns: NDArray[np.int64], base_offset: int, first: int) -> bool:
        """Add the offset of each key, from offset `first` on; False if the map is full."""
        arguments = (octets(section), columns, base_offset, first)
        return bool(add_keys(self._table, self._used, self._limit, self._secret, *arguments))

    def latest(self, section: Bytes, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The latest offset of the key of each record, or −1."""
        found = np.empty(columns.shape[1], np.int64)
        find_keys(self._table, self._secret, octets(section), columns, found)
        return found

    def restamp(self, section: Bytes, columns: NDArray[np.int64], shift: int) -> bytes:
        """The records with `shift` subtracted from their timestamp deltas, for a new base timestamp."""
        output = np.empty(int(columns[SIZE].sum()) + 2 * _MAX_VARINT_BYTES * columns.shape[1], np.uint8)
        size = restamp_records(octets(section), np.ascontiguousarray(columns), shift, output)
        return output[:size].tobytes()


@compiled
def add_keys(
    table: NDArray[np.int64],
    used: NDArray[np.int64],
    limit: int,
    secret: NDArray[np.uint64],
    data: Octets,
    columns: Columns,
    base_offset: int,
    first: int,
) -> bool:
    """Add the offset of each record with a key; False if there would be more than `limit` keys."""
    for index in range(columns.shape[1]):
        offset = base_offset + columns[OFFSET_DELTA, index]
        size = columns[KEY_SIZE, index]
        if size < 0 or offset < first:
            continue
        low, high = hash_key(data, columns[KEY_START, index], size, secret)
        slot = find_slot(table, low, high)
        if table[slot, 2] == _EMPTY:
            if used[0] >= limit:
                return False
            used[0] += 1
            table[slot, 0] = low
            table[slot, 1] = high
        table[slot, 2] = offset
    return True


@compiled
def find_keys(
    table: NDArray[np.int64],
    secret: NDArray[np.uint64],
    data: Octets,
    columns: Columns,
    found: NDArray[np.int64],
) -> None:
    """Fill `found` with the offset of the key of each record, or −1."""
    for index in range(columns.shape[1]):
        size = columns[KEY_SIZE, index]
        if size < 0:
            found[index] = _EMPTY
            continue
        low, high = hash_key(data, columns[KEY_START, index], size, secret)
        found[index] = table[find_slot(table, low, high), 2]


@compiled
def find_slot(table: NDArray[np.int64], low: int, high: int) -> int:
    """The slot of a key, or the free slot for it. The table is never full."""
    slots = len(table)
    # The upper 32 bits of the hash, scaled to the number of slots: a division would cost more.
    slot = int(np.int64(((np.uint64(low) >> np.uint64(32)) * np.uint64(slots)) >> np.uint64(32)))
    while table[slot, 2] != _EMPTY and (table[slot, 0] != low or table[slot, 1] != high):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@compiled
def sip_round(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> tuple[np.uint64, ...]:
    """One round of SipHash."""
    v0 += v1
    v1 = ((v1 << np.uint64(13)) | (v1 >> np.uint64(51))) ^ v0
    v0 = (v0 << np.uint64(32)) | (v0 >> np.uint64(32))
    v2 += v3
    v3 = ((v3 << np.uint64(16)) | (v3 >> np.uint64(48))) ^ v2
    v0 += v3
    v3 = ((v3 << np.uint64(21)) | (v3 >> np.uint64(43))) ^ v0
    v2 += v1
    v1 = ((v1 << np.uint64(17)) | (v1 >> np.uint64(47))) ^ v2
    v2 = (v2 << np.uint64(32)) | (v2 >> np.uint64(32))
    return v0, v1, v2, v3


@compiled
def hash_key(data: Octets, start: int, size: int, secret: NDArray[np.uint64]) -> tuple[int, int]:
    """SipHash-1-3-128 of a key."""
    v0 = secret[0] ^ np.uint64(0x736F6D6570736575)
    v1 = secret[1] ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
    v2 = secret[0] ^ np.uint64(0x6C7967656E657261)
    v3 = secret[1] ^ np.uint64(0x7465646279746573)
    whole = size - size % 8
    for position in range(start, start + whole, 8):
        word = np.uint64(0)
        for byte in range(8):
            word |= np.uint64(data[position + byte]) << np.uint64(8 * byte)
        v3 ^= word
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
        v0 ^= word
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for byte in range(size - whole):
        word |= np.uint64(data[start + whole + byte]) << np.uint64(8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(3):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(3):
        v0, v1, v2, v3 = sip_round(v0, v1, v2, v3)
    return int(np.int64(low)), int(np.int64(v0 ^ v1 ^ v2 ^ v3))


@compiled
def varint_end(data: Octets, position: int) -> int:
    """The position after a valid varint."""
    while data[position] & np.uint8(0x80):
        position += 1
    return position + 1


@compiled
def restamp_records(data: Octets, columns: Columns, shift: int, output: Octets) -> int:
    """Copy the records with `shift` subtracted from each timestamp delta; returns the size."""
    scratch = np.empty(_MAX_VARINT_BYTES, np.uint8)
    position = 0
    for index in range(columns.shape[1]):
        start = columns[START, index]
        end = start + columns[SIZE, index]
        body = varint_end(data, start)
        rest = varint_end(data, body + 1)
        delta_bytes = write_varint(scratch, 0, columns[TIMESTAMP_DELTA, index] - shift)
        position = write_varint(output, position, 1 + delta_bytes + end - rest)
        output[position] = data[body]
        position += 1
        for byte in range(delta_bytes):
            output[position + byte] = scratch[byte]
        position += delta_bytes
        for byte in range(end - rest):
            output[position + byte] = data[rest + byte]
        position += end - rest
    return position
