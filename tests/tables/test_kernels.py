"""Hashes that collide, keys that differ in one byte, and the order of versions."""

import numpy as np
import pyarrow as pa
import pytest

from headrace.columns.key_hash import key_bytes, keys_of
from headrace.tables.kernels import Order, hash_keys, mark_needed, merge_orders
from headrace.tables.lookup import Versions
from headrace.tables.versions import SYSTEM

SAME = 1 << 63
HASHES = [0xFEB3F5A5D9F346B7, 0x70E1F686AAEE0244, 0x8DAAB8BBF06B48FC]


def versions(rows: list[tuple[int, str, int]]) -> Versions:
    """Sorted versions: hash, key and time."""
    columns = [
        pa.array([row[0] for row in rows], pa.uint64()),
        pa.array([row[1].encode() for row in rows], pa.large_binary()),
        pa.array([row[2] for row in rows], pa.int64()),
        pa.array([0] * len(rows), pa.int32()),
        pa.array(range(len(rows)), pa.int64()),
        pa.array([0] * len(rows), pa.int8()),
    ]
    return Versions.of(pa.Table.from_arrays(columns, schema=pa.schema(list(SYSTEM))))


def places(table: Versions, wanted: list[tuple[int, str, int]]) -> list[int]:
    keys = keys_of(pa.array([key.encode() for _, key, _ in wanted], pa.large_binary()))
    hashes = np.array([hash_ for hash_, _, _ in wanted], np.uint64)
    return table.find(hashes, keys, np.array([at for _, _, at in wanted], np.int64)).tolist()


def test_keys_with_the_same_hash_are_told_apart_by_their_bytes() -> None:
    mixed = versions([(SAME, "a", 1), (SAME, "b", 2), (SAME, "a", 3), (SAME, "bb", 4), (SAME + 1, "a", 0)])
    wanted = [(SAME, "a", 2), (SAME, "a", 9), (SAME, "b", 1), (SAME, "b", 9), (SAME, "bb", 4), (SAME, "c", 9)]
    assert places(mixed, wanted) == [0, 2, -1, 1, 3, -1]
    assert places(mixed, [(SAME + 1, "a", 0), (SAME + 1, "b", 0), (0, "a", 9), (2**64 - 1, "a", 9)]) == [
        4,
        -1,
        -1,
        -1,
    ]


def test_an_old_version_is_kept_for_its_key_although_another_key_has_the_same_hash() -> None:
    keys = keys_of(pa.array([b"a", b"b", b"a"], pa.large_binary()))
    hashes, times = np.full(3, SAME, np.uint64), np.array([1, 5, 9])
    for array in (hashes, times):
        array.flags.writeable = False
    needed = np.empty(3, np.bool_)
    mark_needed(hashes, times, np.zeros(3, np.int8), keys, 7, needed)
    assert needed.tolist() == [True, True, True]
    mark_needed(hashes, times, np.zeros(3, np.int8), keys, 9, needed)
    assert needed.tolist() == [False, True, True]


def test_a_record_that_is_in_both_files_is_merged_once() -> None:
    def order(offsets: list[int]) -> Order:
        count = len(offsets)
        return Order(
            np.full(count, SAME, np.uint64),
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            np.array(offsets, np.int64),
        )

    taken = np.empty(5, np.int64)
    count = merge_orders(order([1, 2, 4]), order([2, 3]), taken)
    assert taken[:count].tolist() == [0, 3, 4, 2]


@pytest.mark.parametrize("count", [1, 100_000])
def test_hashes_spread(count: int) -> None:
    keys = keys_of(key_bytes([pa.array(range(count), pa.int64())]))
    hashes = np.empty(count, np.uint64)
    hash_keys(keys, hashes)
    assert len(np.unique(hashes)) == count
    first_bits = np.bincount((hashes >> np.uint64(60)).astype(np.int64), minlength=16)
    assert count == 1 or first_bits.min() > count / 16 * 0.9


def test_an_empty_file_holds_nothing() -> None:
    assert places(versions([]), [(0, "", 0), (2**64 - 1, "a", 9)]) == [-1, -1]


def test_the_hash_of_a_key_is_siphash_1_3_and_never_changes() -> None:
    # Files are sorted by it: a changed hash would not find what they hold.
    assert hashed([b"", bytes(range(15)), b"order-0000001"]) == HASHES


def test_keys_cannot_be_chosen_to_have_one_hash_by_inverting_its_steps() -> None:
    # Two words: the second cancels what the first has come to, as it did in a hash of 64 bits of state.
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mixed(value: int) -> int:
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
        return value ^ value >> 31

    keys = [
        first.to_bytes(8, "little") + ((mixed(golden ^ 16 ^ first) + golden) & mask).to_bytes(8, "little")
        for first in range(1, 2_000)
    ]
    assert len(set(hashed(keys))) == len(keys)


def hashed(keys: list[bytes]) -> list[int]:
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys_of(pa.array(keys, pa.large_binary())), hashes)
    return [int(value) for value in hashes]
