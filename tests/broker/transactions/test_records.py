"""The records of `__transaction_state` in Kafka's formats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.state_log import MemoryStateLog, StateRecord, UnknownRecord
from headrace.broker.transactions.records import (
    read_key,
    read_next_producer_id,
    read_value,
    write_key,
    write_next_producer_id,
    write_value,
)
from headrace.broker.transactions.state_manager import PRODUCER_ID_BLOCK, ProducerIdManager
from headrace.broker.transactions.transaction import TopicPartition, TransactionMetadata, TransactionState

short, integer, long = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
transactions = st.builds(
    TransactionMetadata,
    transactional_id=st.text(min_size=1, max_size=20),
    producer_id=long,
    epoch=short,
    last_epoch=short,
    previous_producer_id=long,
    next_producer_id=long,
    timeout_ms=integer,
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions=st.frozensets(
        st.builds(TopicPartition, st.text(min_size=1, max_size=200), st.integers(0, 5)), max_size=8
    ),
    started_ms=long,
    updated_ms=long,
    client_version=short,
)


@given(transactions)
def test_a_transaction_round_trips(transaction: TransactionMetadata) -> None:
    assert read_key(write_key(transaction.transactional_id)) == transaction.transactional_id
    assert read_value(transaction.transactional_id, write_value(transaction)) == transaction


def test_a_value_has_the_format_of_kafkas_version_1() -> None:
    transaction = TransactionMetadata(
        transactional_id="t",
        producer_id=5,
        epoch=2,
        timeout_ms=1000,
        state=TransactionState.ONGOING,
        partitions=frozenset({TopicPartition("ab", 3), TopicPartition("ab", 1)}),
        started_ms=16,
        updated_ms=17,
        previous_producer_id=4,
        client_version=2,
    )
    assert write_value(transaction) == bytes.fromhex(
        "0001"  # version
        "0000000000000005 0002 000003e8 01"  # producer id, epoch, timeout, Ongoing
        "02 03 6162 03 00000001 00000003 00"  # one topic of two partitions
        "0000000000000011 0000000000000010"  # last update, start
        "02 00 08 0000000000000004 02 02 0002"  # two tagged fields: previous id, client's version
    )


def test_an_empty_transaction_has_null_for_its_partitions() -> None:
    transaction = TransactionMetadata(
        transactional_id="t", producer_id=5, epoch=0, timeout_ms=1, updated_ms=7
    )
    value = write_value(transaction)
    assert value == bytes.fromhex(
        "0001 0000000000000005 0000 00000001 00 00 0000000000000007 ffffffffffffffff 00"
    )
    assert read_value("t", value) == transaction


def test_values_of_version_0_are_read() -> None:
    value = bytes.fromhex(
        "0000 0000000000000005 0002 000003e8 04"
        "00000001 0002 6162 00000002 00000001 00000003"
        "0000000000000011 0000000000000010"
    )
    transaction = read_value("t", value)
    assert transaction.state is TransactionState.COMPLETE_COMMIT
    assert transaction.partitions == {("ab", 1), ("ab", 3)}
    assert (transaction.updated_ms, transaction.started_ms) == (17, 16)


def test_the_next_producer_id_has_a_key_of_its_own() -> None:
    key, value = write_next_producer_id(3000)
    assert read_key(key) is None
    assert read_next_producer_id(value) == 3000


UNKNOWN = {
    "a key of version 7": lambda: read_key(b"\0\7\0\1t"),
    "a transaction of version 2": lambda: read_value("t", b"\0\2" + _empty()[2:]),
    "a transaction in state 9": lambda: read_value("t", _empty()[:16] + b"\x09" + _empty()[17:]),
    "a next producer id of version 1": lambda: read_next_producer_id(b"\0\1" + bytes(8)),
}


def _empty() -> bytes:
    return write_value(
        TransactionMetadata(transactional_id="t", producer_id=5, epoch=0, timeout_ms=1, updated_ms=7)
    )


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_record_of_a_newer_broker_is_rejected(what: str) -> None:
    with pytest.raises(UnknownRecord, match=what):
        UNKNOWN[what]()


def test_no_producer_id_is_allocated_twice_across_restarts() -> None:
    log = MemoryStateLog()
    given_ids: list[int] = []
    for _ in range(3):
        ids = ProducerIdManager(log)
        for entry in log.replay():
            assert isinstance(entry, StateRecord)
            assert entry.value is not None
            ids.restore(read_next_producer_id(entry.value))
        given_ids += [ids.allocate() for _ in range(PRODUCER_ID_BLOCK + 1)]
    assert len(set(given_ids)) == len(given_ids)
    assert len(log.entries) == 6
