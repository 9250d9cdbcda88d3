"""Acknowledgements of share groups, from a client's bytes to what the broker makes of them."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.share_groups import Acknowledgment, pack_share_acknowledge
from headrace.protocol.errors import ProtocolError
from headrace.protocol.share import AcknowledgedRange, read_share_acknowledge

PLACE = (UUID(int=7), 3)
WORDS = st.dictionaries(st.integers(0, 40), st.integers(1, 4), min_size=1)


def read(said: dict[int, int], *, cut: int = 0, delay_ms: int = 0) -> list[AcknowledgedRange]:
    """What the broker reads of a request of our client, less its last bytes."""
    words = {offset: Acknowledgment(kind, delay_ms) for offset, kind in said.items()}
    frame = b"".join(pack_share_acknowledge("mailer", "m", 1, {PLACE: words}))
    (partition,) = read_share_acknowledge(memoryview(frame[: len(frame) - cut]), 0, 2).partitions
    assert (partition.topic, partition.partition) == PLACE
    return partition.acknowledged


@given(WORDS)
def test_what_is_said_of_each_record_is_read(said: dict[int, int]) -> None:
    ranges = read(said)
    assert {offset: each.types[0] for each in ranges for offset in range(each.first, each.last + 1)} == said
    assert sum(each.last - each.first + 1 for each in ranges) == len(said)
    assert all(len(each.types) == 1 for each in ranges)


def test_the_delay_of_a_release_is_read() -> None:
    assert read({1: 2, 2: 2, 4: 2}, delay_ms=1500) == [
        AcknowledgedRange(1, 2, (2,), 1500),
        AcknowledgedRange(4, 4, (2,), 1500),
    ]


def test_neighbors_of_which_the_same_is_said_are_one_range() -> None:
    assert read({1: 1, 2: 1, 3: 1, 4: 2, 6: 2, 7: 2}) == [
        AcknowledgedRange(1, 3, (1,)),
        AcknowledgedRange(4, 4, (2,)),
        AcknowledgedRange(6, 7, (2,)),
    ]


@pytest.mark.parametrize("cut", [4, 12, 23, 24, 41])
def test_a_request_that_ends_among_its_ranges_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        read({1: 1, 2: 1, 3: 1}, cut=cut)
