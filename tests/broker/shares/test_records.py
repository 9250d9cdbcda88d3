"""The records of `__share_group_state`, and sets of offsets as ranges."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.shares.progress import ArchiveReason, OffsetRanges, StoredRange, StoredState
from headrace.broker.shares.records import (
    CHUNK,
    START_OFFSET,
    SharePartitionKey,
    read_key,
    read_ranges,
    read_start_offset,
    write_chunk_key,
    write_ranges,
    write_start_offset,
    write_start_offset_key,
)

KEY = SharePartitionKey("mailer", UUID(int=7), 3)


def test_records_round_trip() -> None:
    ranges = [
        StoredRange(3, 9, StoredState.ACKNOWLEDGED),
        StoredRange(10, 10, StoredState.ARCHIVING, 5, ArchiveReason.DELIVERY_LIMIT, 77),
    ]
    assert read_ranges(write_ranges(ranges)) == ranges
    assert read_start_offset(write_start_offset(2**40)) == 2**40
    key = read_key(write_chunk_key(KEY, 12))
    assert (key.kind, key.share_partition, key.chunk) == (CHUNK, KEY, 12)
    assert read_key(write_start_offset_key(KEY))[:3] == (START_OFFSET, "mailer", KEY)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))), st.integers(0, 70))
def test_ranges_agree_with_a_set_of_numbers(pairs: list[tuple[int, int]], number: int) -> None:
    ranges, numbers = OffsetRanges(), set[int]()
    for first, length in pairs:
        ranges.add(first, first + length)
        numbers |= set(range(first, first + length + 1))
    assert {n for n in range(80) if n in ranges} == numbers
    assert ranges.total() == len(numbers)
    found = [n for first, last in ranges.between(number, number + 9) for n in range(first, last + 1)]
    assert found == sorted(n for n in numbers if number <= n <= number + 9)
    expected = next(n for n in range(number, 90) if n not in numbers)
    assert ranges.first_missing(number) == expected
    if len(ranges) > 1:
        assert all(last + 1 < first for (_, last), (first, _) in zip(ranges, list(ranges)[1:], strict=False))
    assert ranges.remove_through(number) == expected
    assert {n for n in range(80) if n in ranges} == {n for n in numbers if n > expected}
