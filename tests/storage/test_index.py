"""Sparse indexes: what they answer, and that their files bring them back."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.index import OffsetIndex, TimeIndex

BASE = 1000
INT_MAX = 2**31 - 1

rising = st.lists(st.integers(0, INT_MAX), unique=True).map(sorted)
entries = rising.flatmap(
    lambda offsets: st.tuples(
        st.just(offsets),
        st.lists(st.integers(1, INT_MAX), min_size=len(offsets), max_size=len(offsets), unique=True).map(
            sorted
        ),
    )
)
times = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, INT_MAX)))


def offset_index(offsets, positions):
    index = OffsetIndex(BASE)
    for offset, position in zip(offsets, positions, strict=True):
        index.add(BASE + offset, position)
    return index


def time_index(entries):
    index = TimeIndex(BASE)
    for timestamp, offset in entries:
        index.add(timestamp, BASE + offset)
    return index


@given(entries)
def test_an_offset_index_comes_back_from_its_file(entries):
    index = offset_index(*entries)
    loaded = OffsetIndex.load(BASE, index.dump())
    assert (loaded.offsets, loaded.positions) == (index.offsets, index.positions)


@given(times)
def test_a_time_index_comes_back_from_its_file(entries):
    index = time_index(entries)
    loaded = TimeIndex.load(BASE, index.dump())
    assert (loaded.times, loaded.offsets) == (index.times, index.offsets)


@given(entries, st.integers(0, 7))
def test_an_entry_that_is_cut_off_at_the_end_of_a_file_is_left_out(entries, cut):
    index = offset_index(*entries)
    data = index.dump()
    whole = OffsetIndex.load(BASE, data[: len(data) - cut])
    assert list(whole.offsets) == list(index.offsets)[: len(whole)]
    assert len(whole) == max(0, len(index) - bool(cut))


@given(st.binary(max_size=200))
def test_garbage_is_read_as_entries_in_order_or_not_at_all(garbage):
    offsets = OffsetIndex.load(BASE, garbage)
    assert list(offsets.offsets) == sorted(set(offsets.offsets))
    assert list(offsets.positions) == sorted(set(offsets.positions))
    assert all(position > 0 for position in offsets.positions)
    loaded = TimeIndex.load(BASE, garbage)
    assert list(loaded.times) == sorted(set(loaded.times))


def test_zeroes_that_kafka_preallocates_are_no_entries():
    data = offset_index([4, 9], [100, 200]).dump() + bytes(80)
    assert list(OffsetIndex.load(BASE, data).offsets) == [BASE + 4, BASE + 9]
    assert len(OffsetIndex.load(BASE, bytes(80))) == 0


def test_the_files_have_kafkas_layout():
    assert offset_index([4, 9], [100, 200]).dump() == struct.pack(">iiii", 4, 100, 9, 200)
    assert time_index([(77, 4)]).dump() == struct.pack(">qi", 77, 4)


@given(entries, st.integers(0, INT_MAX))
def test_a_search_begins_at_the_last_entry_that_is_not_beyond_the_offset(entries, wanted):
    offsets, positions = entries
    known = [position for offset, position in zip(offsets, positions, strict=True) if offset <= wanted]
    assert offset_index(offsets, positions).floor(BASE + wanted) == max(known, default=0)


@given(entries, st.integers(0, INT_MAX), st.integers(0, INT_MAX))
def test_a_boundary_is_the_last_known_one_within_the_limit(entries, low, width):
    offsets, positions = entries
    known = [position for position in positions if low <= position <= low + width]
    assert offset_index(offsets, positions).boundary(low, low + width) == max(known, default=low)


@given(times, st.integers(0, 2**62))
def test_no_record_before_the_offset_found_for_a_time_is_as_late(entries, wanted):
    in_order = [(timestamp, number) for number, (timestamp, _) in enumerate(entries)]
    found = time_index(in_order).floor(wanted)
    assert all(timestamp < wanted for timestamp, number in in_order if BASE + number < found)


def test_a_time_that_is_out_of_order_is_not_noted():
    index = time_index([(50, 1), (40, 2), (50, 3), (60, 4)])
    assert list(index.times) == [50, 60]
    assert index.max_timestamp == 60
