"""Compiled loops over versions: hash keys, find the one that counts, merge two files, drop what is too old.

Versions are in the order of (hash of the key, valid from, partition, offset). Keys with equal hashes may lie
mixed: a lookup compares the bytes of the key, from the newest version that is not too new backwards. That is
quick as long as equal hashes are rare, so the hash is SipHash-1-3: with its 256 bits of state nobody can
choose many keys of one hash, as with a mix of 64 bits that can be inverted, although its key is fixed. It is
fixed because files are sorted by the hash, and tasks on other machines read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from headrace.columns.key_hash import sip_hash
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.key_hash import Keys

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]
    Flags = NDArray[np.int8]

_KEY: Final = np.array([0x9E3779B97F4A7C15, 0xD1B54A32D192ED03], np.uint64)


class Order(NamedTuple):
    """What versions are sorted by."""

    hashes: Hashes
    valid_from: Numbers
    partitions: NDArray[np.int32]
    offsets: Numbers


def hash_keys(keys: Keys, hashes: Hashes) -> None:
    """Fill `hashes` with a number for each key; it is part of the files, and must never change."""
    sip_hash(keys, _KEY, hashes)


@borrowing
def fill_buckets(hashes: Hashes, shift: int, buckets: NDArray[np.int32]) -> None:
    """Fill `buckets` so that hashes with the first bits `b` lie between `buckets[b]` and `buckets[b + 1]`."""
    bucket = 0
    for row in range(len(hashes)):
        first_bits = np.int64(hashes[row] >> np.uint64(shift))
        while bucket <= first_bits:
            buckets[bucket] = row
            bucket += 1
    while bucket < len(buckets):
        buckets[bucket] = len(hashes)
        bucket += 1


@borrowing
def same_key(one: Keys, first: int, other: Keys, second: int) -> bool:
    """Whether key `first` of one and key `second` of the other are the same bytes."""
    start, place = one.offsets[first], other.offsets[second]
    size = one.offsets[first + 1] - start
    if size != other.offsets[second + 1] - place:
        return False
    for index in range(size):  # noqa: SIM110  a compiled loop knows no generators
        if one.data[start + index] != other.data[place + index]:
            return False
    return True


@borrowing
def find_versions(
    hashes: Hashes,
    valid_from: Numbers,
    keys: Keys,
    buckets: NDArray[np.int32],
    shift: int,
    wanted_hashes: Hashes,
    wanted: Keys,
    times: Numbers,
    found: Numbers,
) -> None:
    """Fill `found` with the newest version of each wanted key that counts at its time, or −1."""
    for row in range(len(found)):
        value = wanted_hashes[row]
        bucket = np.int64(value >> np.uint64(shift))
        low, high = np.int64(buckets[bucket]), np.int64(buckets[bucket + 1])
        while low < high:
            middle = (low + high) >> 1
            at = hashes[middle]
            if at < value or (at == value and valid_from[middle] <= times[row]):
                low = middle + 1
            else:
                high = middle
        found[row] = -1
        place = low - 1
        while place >= 0 and hashes[place] == value:
            if same_key(keys, int(place), wanted, row):
                found[row] = place
                break
            place -= 1


@borrowing
def _is_before(one: Order, first: int, other: Order, second: int) -> bool:
    """Whether a version comes before another, of another file."""
    if one.hashes[first] != other.hashes[second]:
        return bool(one.hashes[first] < other.hashes[second])
    return is_older(one, first, other, second)


@borrowing
def is_older(one: Order, first: int, other: Order, second: int) -> bool:
    """Whether a version counts before another one of the same key."""
    if one.valid_from[first] != other.valid_from[second]:
        return bool(one.valid_from[first] < other.valid_from[second])
    if one.partitions[first] != other.partitions[second]:
        return bool(one.partitions[first] < other.partitions[second])
    return bool(one.offsets[first] < other.offsets[second])


@borrowing
def choose_newer(base: Order, hot: Order, in_base: Numbers, in_hot: Numbers) -> None:
    """Of two versions that were found for a row leave the newer one; the other becomes −1."""
    for row in range(len(in_base)):
        if in_base[row] >= 0 and in_hot[row] >= 0:
            if is_older(base, in_base[row], hot, in_hot[row]):
                in_base[row] = -1
            else:
                in_hot[row] = -1


@borrowing
def merge_orders(one: Order, other: Order, taken: Numbers) -> int:
    """Fill `taken` with the rows of both in their common order, those of `other` counted behind `one`'s.

    How many they are: a record that is in both is taken once.
    """
    first = second = count = 0
    size, other_size = len(one.hashes), len(other.hashes)
    while first < size or second < other_size:
        if second == other_size or (first < size and _is_before(one, first, other, second)):
            taken[count] = first
            first += 1
        else:
            if first < size and not _is_before(other, second, one, first):
                first += 1
            taken[count] = size + second
            second += 1
        count += 1
    return count


@borrowing
def mark_needed(
    hashes: Hashes, valid_from: Numbers, deleted: Flags, keys: Keys, horizon: int, needed: NDArray[np.bool_]
) -> None:
    """Fill `needed`: whether a version can still count at a time from `horizon` on."""
    for row in range(len(hashes)):
        after = row + 1
        while after < len(hashes) and hashes[after] == hashes[row] and not same_key(keys, row, keys, after):
            after += 1
        if after < len(hashes) and hashes[after] == hashes[row]:
            needed[row] = valid_from[after] > horizon
        else:
            needed[row] = deleted[row] == 0 or valid_from[row] > horizon
