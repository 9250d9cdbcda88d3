"""Leaders that move, answers that get lost, refusals that pass: what is read and written is the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.cluster import Cluster
from headrace.client.errors import ReadTimeout, RequestRefused
from headrace.client.fetch import PartitionReader
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import ProducerIdentity
from headrace.protocol.records import decode_batch
from tests.client.batches import batch, numbers, values_of
from tests.client.scripted_broker import FETCH, METADATA, TOPIC, Fate, ScriptedBroker, serving

PARTITION = TopicPartition(TOPIC, 0)
WRITER = ProducerIdentity(7, 0)
NOT_LEADER, NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS, POLICY_VIOLATION = 6, 19, 51, 44

PASSING_FATES = st.sampled_from(
    [
        Fate(),
        Fate(NOT_LEADER, is_stored=False),
        Fate(NOT_ENOUGH_REPLICAS, is_stored=False),
        Fate(CONCURRENT_TRANSACTIONS, is_stored=False),
        Fate(is_stored=False, is_answered=False),
        Fate(is_stored=True, is_answered=False),
    ]
)


@settings(max_examples=40, deadline=None)
@given(fates=st.lists(PASSING_FATES, max_size=12), batches=st.integers(1, 12), in_flight=st.integers(1, 5))
def test_numbered_batches_are_stored_once_and_in_order_whatever_happens(
    fates: list[Fate], batches: int, in_flight: int
) -> None:
    broker = ScriptedBroker(fates)
    with serving(broker) as address, Cluster([address]) as cluster:
        producer = BatchProducer(cluster, max_in_flight=in_flight)
        for number in range(batches):
            each = batch(numbers(number, number + 1), WRITER, number, transactional=False)
            producer.send(PARTITION, each)
        producer.flush()
    assert [record.value for each in broker.log for record in decode_batch(each)] == numbers(0, batches)


@settings(max_examples=20, deadline=None)
@given(fates=st.lists(PASSING_FATES, max_size=8), batches=st.integers(1, 8))
def test_plain_batches_are_stored_at_least_once(fates: list[Fate], batches: int) -> None:
    broker = ScriptedBroker(fates)
    with serving(broker) as address, Cluster([address]) as cluster:
        producer = BatchProducer(cluster)
        for number in range(batches):
            producer.send(PARTITION, batch(numbers(number, number + 1)))
        producer.flush()
    stored = {record.value for each in broker.log for record in decode_batch(each)}
    assert stored == set(numbers(0, batches))


def test_a_refusal_for_good_ends_the_writing_and_leaves_the_connection_in_order() -> None:
    broker = ScriptedBroker([Fate(), Fate(POLICY_VIOLATION, is_stored=False)])
    with serving(broker) as address, Cluster([address]) as cluster:
        producer = BatchProducer(cluster)
        for number in range(5):
            producer.send(PARTITION, batch(numbers(number, number + 1)))
        with pytest.raises(RequestRefused, match="store a batch in topic/0"):
            producer.flush()
        assert cluster.topics([TOPIC])[TOPIC].partitions == (0,)


def test_a_refusal_that_does_not_pass_in_time_is_raised() -> None:
    broker = ScriptedBroker([Fate(NOT_ENOUGH_REPLICAS, is_stored=False)] * 1000)
    with serving(broker) as address, Cluster([address], timeout_s=2) as cluster:
        producer = BatchProducer(cluster)
        producer.send(PARTITION, batch([b"x"]))
        with pytest.raises(RequestRefused, match="not_enough_replicas"):
            producer.flush()


@settings(max_examples=40, deadline=None)
@given(
    fates=st.lists(
        st.sampled_from(
            [Fate(), Fate(NOT_LEADER), Fate(is_answered=False), Fate(is_empty=True, throttle_ms=5)]
        ),
        max_size=12,
    ),
    start=st.integers(0, 20),
    length=st.integers(0, 20),
)
def test_a_range_is_read_whole_whatever_happens(fates: list[Fate], start: int, length: int) -> None:
    broker = log_of(*(numbers(base, base + 4) for base in range(0, 40, 4)))
    broker.fates.extend(fates)
    with serving(broker) as address, Cluster([address]) as cluster:
        reader = PartitionReader(cluster, PARTITION, start, start + length)
        assert values_of(reader, start, start + length) == numbers(start, start + length)


def log_of(*values: list[bytes]) -> ScriptedBroker:
    broker = ScriptedBroker()
    for each in values:
        broker.append(batch(each))
    return broker


def test_a_leader_that_moved_is_found() -> None:
    old, new = log_of(numbers(0, 4), numbers(4, 8)), log_of(numbers(0, 4), numbers(4, 8))
    with serving(new) as new_address, serving(old) as old_address, Cluster([old_address]) as cluster:
        pieces = iter(PartitionReader(cluster, PARTITION, 0, 8))
        read = [next(pieces)]
        old.fates.extend([Fate(NOT_LEADER)] * 1000)
        old.leader = new.leader = new_address
        read += pieces
    assert values_of(read, 0, 8) == numbers(0, 8)


def test_a_gap_at_the_end_of_a_compacted_partition_ends_the_range() -> None:
    broker = log_of(numbers(0, 4))
    broker.end = 100  # the rest was removed by compaction, and the segment after it is empty
    with serving(broker) as address, Cluster([address]) as cluster:
        assert values_of(PartitionReader(cluster, PARTITION, 0, 100), 0, 100) == numbers(0, 4)
    assert broker.asked.count(FETCH) == 3


def test_a_gap_in_the_middle_is_passed_over() -> None:
    broker = log_of(numbers(0, 4))
    broker.end = 50
    broker.append(batch(numbers(50, 54)))
    with serving(broker) as address, Cluster([address]) as cluster:
        for start, end in ((0, 54), (0, 20), (10, 20), (10, 51)):
            expected = [value for value in numbers(start, end) if not 4 <= int(value) < 50]
            assert values_of(PartitionReader(cluster, PARTITION, start, end), start, end) == expected


def test_a_partition_that_gives_nothing_for_too_long_is_an_error() -> None:
    broker = log_of(numbers(0, 4), numbers(4, 8))
    broker.fates.extend([Fate(), *[Fate(is_empty=True, throttle_ms=1)] * 1000])
    with serving(broker) as address, Cluster([address], timeout_s=2) as cluster:
        pieces = iter(PartitionReader(cluster, PARTITION, 0, 8))
        assert next(pieces).next_offset == 4
        with pytest.raises(ReadTimeout, match=r"returned nothing from offset 4 on for 2 s"):
            next(pieces)


def test_a_refusal_that_waiting_does_not_change_is_raised() -> None:
    broker = log_of(numbers(0, 4))
    broker.fates.append(Fate(29))
    with serving(broker) as address, Cluster([address]) as cluster:
        with pytest.raises(RequestRefused, match="topic_authorization_failed"):
            list(PartitionReader(cluster, PARTITION, 0, 4))
        assert broker.asked.count(METADATA) == 1
