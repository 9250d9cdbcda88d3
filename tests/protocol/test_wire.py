"""Kafka's primitive types, read and written by position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import (
    INT32,
    MAX_ITEMS,
    FrameCursor,
    pack_count,
    pack_string,
    pack_unsigned_varint,
    read_unsigned_varint,
    skip_tagged_fields,
)

flexible = pytest.mark.parametrize("flexible", [True, False])


def cursor(data, *, flexible=False):
    return FrameCursor(memoryview(data), 0, flexible=flexible)


@given(st.integers(0, 2**35 - 1), st.binary(max_size=3))
def test_an_unsigned_varint_comes_back(value, rest):
    packed = pack_unsigned_varint(value)
    assert read_unsigned_varint(memoryview(packed + rest), 0) == (value, len(packed))


@given(st.integers(0, 2**35 - 1))
def test_an_unsigned_varint_that_ends_early_is_refused(value):
    with pytest.raises(ProtocolError, match="ends within a varint"):
        read_unsigned_varint(memoryview(pack_unsigned_varint(value)[:-1]), 0)


def test_an_unsigned_varint_of_more_than_five_bytes_is_refused():
    with pytest.raises(ProtocolError, match="more than five bytes"):
        read_unsigned_varint(memoryview(b"\x80" * 9), 0)


@flexible
@given(text=st.none() | st.text(max_size=300))
def test_a_string_comes_back(flexible, text):
    packed = pack_string(text, flexible=flexible)
    reader = cursor(packed, flexible=flexible)
    assert reader.string() == text
    assert reader.position == len(packed)


@flexible
@given(count=st.integers(-1, MAX_ITEMS))
def test_the_length_of_an_array_comes_back(flexible, count):
    packed = pack_count(count, flexible=flexible)
    assert cursor(packed + bytes(max(count, 0)), flexible=flexible).count() == count


@flexible
@given(count=st.integers(1, 2**30), room=st.integers(0, 100))
def test_an_array_of_more_items_than_bytes_is_a_lie(flexible, count, room):
    packed = pack_count(count + room, flexible=flexible)
    with pytest.raises(ProtocolError, match="items"):
        cursor(packed + bytes(room), flexible=flexible).count()


@flexible
def test_many_arrays_together_are_limited_too(flexible):
    reader = cursor(pack_count(MAX_ITEMS, flexible=flexible) * 2 + bytes(MAX_ITEMS), flexible=flexible)
    reader.count()
    with pytest.raises(ProtocolError, match="several smaller ones"):
        reader.count()


@flexible
@given(size=st.integers(1, 2**31 - 1))
def test_bytes_longer_than_the_frame_are_refused(flexible, size):
    packed = pack_count(size, flexible=flexible)
    with pytest.raises(ProtocolError, match="in a frame that has 0 left"):
        cursor(packed, flexible=flexible).blob()


def test_a_name_that_is_not_utf8_is_refused():
    with pytest.raises(ProtocolError, match="not UTF-8"):
        cursor(b"\0\2\xff\xff").string()


def test_a_field_that_is_cut_off_is_refused():
    with pytest.raises(ProtocolError, match="ends within a field"):
        cursor(b"\0\0\0").take(INT32)
    with pytest.raises(ProtocolError, match="16 bytes"):
        cursor(bytes(15)).uuid()


@given(st.lists(st.tuples(st.integers(0, 1000), st.binary(max_size=200)), max_size=5), st.binary(max_size=3))
def test_tagged_fields_are_passed_over(fields, rest):
    packed = pack_unsigned_varint(len(fields)) + b"".join(
        pack_unsigned_varint(tag) + pack_unsigned_varint(len(data)) + data for tag, data in fields
    )
    assert skip_tagged_fields(memoryview(packed + rest), 0) == len(packed)


def test_a_tagged_field_longer_than_the_frame_is_refused():
    with pytest.raises(ProtocolError, match="longer than its frame"):
        skip_tagged_fields(memoryview(b"\x01\x00\x7fshort"), 0)
