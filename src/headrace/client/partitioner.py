"""The partition of a key, as Kafka's Java client and Headrace's jobs choose it."""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFFFFFF
MULTIPLIER: Final = 0x5BD1E995
SEED: Final = 0x9747B28C


def partition_of(key: bytes | None, count: int) -> int:
    """The partition, of `count`, for a key; the first one if there is no key.

    >>> partition_of(b"abc", 10), partition_of(None, 10)
    (7, 0)
    """
    if count == 1 or key is None:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned number of 32 bits."""
    whole = len(data) & ~3
    result = SEED ^ len(data)
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * MULTIPLIER & MASK
        word = (word ^ word >> 24) * MULTIPLIER & MASK
        result = (result * MULTIPLIER & MASK) ^ word
    if whole < len(data):
        result = (result ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & MASK
    result = (result ^ result >> 13) * MULTIPLIER & MASK
    return result ^ result >> 15
