"""The compiled walk: the same numbers as the plain one, and the same refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol import records
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets, read_varint, walk
from headrace.protocol.records import (
    ROWS,
    NewRecord,
    RecordLayout,
    encode_records,
    encode_varint,
    walk_records,
)

TIME = 1_700_000_000_000
# The first call compiles, which takes longer than any example may.
unhurried = settings(deadline=None)

blobs = st.none() | st.binary(max_size=300)
sections = st.lists(
    st.builds(
        NewRecord,
        key=blobs,
        value=blobs,
        timestamp=st.integers(0, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=3), blobs), max_size=2).map(tuple),
    ),
    max_size=80,
).map(lambda new: (encode_records(new, TIME), len(new)))


def plain_walk(section: bytes, count: int) -> list[RecordLayout] | None:
    try:
        return list(walk_records(section, count))
    except CorruptBatch:
        return None


def compiled_walk(section: bytes, count: int) -> list[RecordLayout] | None:
    try:
        return [RecordLayout(*column) for column in walk(octets(section), count).T.tolist()]
    except CorruptBatch:
        return None


def test_the_rows_are_the_fields_of_a_record_layout():
    rows = [getattr(records, name.upper()) for name in RecordLayout._fields]
    assert rows == list(range(ROWS))


@given(sections)
@unhurried
def test_a_walk_gives_what_the_plain_walk_gives(section_and_count):
    section, count = section_and_count
    extents = compiled_walk(section, count)
    assert extents is not None
    assert extents == plain_walk(section, count)


@given(sections, st.data())
@unhurried
def test_damaged_bytes_are_refused_where_the_plain_walk_refuses_them(section_and_count, data):
    section, count = bytearray(section_and_count[0]), section_and_count[1]
    for _ in range(data.draw(st.integers(1, 3))):
        if section:
            section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(section[: data.draw(st.integers(0, len(section)))])
    if count <= len(damaged) // 7:
        assert compiled_walk(damaged, count) == plain_walk(damaged, count)


@given(st.binary(max_size=150), st.integers(0, 20))
@unhurried
def test_arbitrary_bytes_are_refused_where_the_plain_walk_refuses_them(section, count):
    if count <= len(section) // 7:
        assert compiled_walk(section, count) == plain_walk(section, count)


@given(st.integers(-(2**63), 2**63 - 1))
@unhurried
def test_a_varint_is_read(value):
    data = encode_varint(value)
    assert read_varint(octets(data), 0, len(data), 64) == (value, len(data))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"\xff" * 5 + b"\x00", b"\xff\xff\xff\xff\x1f"],
    ids=["none", "cut", "long", "wide"],
)
def test_a_varint_that_is_none_has_no_end(data):
    assert read_varint(octets(data), 0, len(data), 32)[1] == -1


def test_a_walk_never_reads_behind_its_section():
    # The bytes behind the section would complete the record, if they were read.
    section, count = encode_records([NewRecord(b"key", b"value" * 20, TIME)], TIME), 1
    whole = np.frombuffer(section, np.uint8)
    for end in range(7, len(section)):
        cut = whole[:end]
        cut.flags.writeable = False
        with pytest.raises(CorruptBatch):
            walk(cut, count)


@pytest.mark.parametrize("count", [-1, 3, 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused_before_anything_is_allocated(count):
    with pytest.raises(CorruptBatch, match="a batch has"):
        walk(octets(bytes(20)), count)
