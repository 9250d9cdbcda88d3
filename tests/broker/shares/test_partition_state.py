"""The order of records by key."""

from headrace.broker.shares.partition_state import KeyOrder


def test_removing_the_first_record_of_a_key_unblocks_the_next() -> None:
    order = KeyOrder()
    assert [order.add(offset, b"k") for offset in (1, 2, 3)] == [True, False, False]
    assert order.blocked == 2
    assert order.remove(2) is None
    assert order.remove(1) == 3
    assert order.remove(3) is None
    assert order.add(9, b"k")
