"""The records of `__share_group_state`."""

from uuid import UUID

from headrace.broker.shares.progress import ArchiveReason, StoredRange, StoredState
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
