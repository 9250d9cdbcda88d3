"""Raw batches of a range of offsets: all of them, once, however the broker cuts its answers."""

import itertools
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.bootstrap import client_config
from headrace.client.cluster import Cluster
from headrace.client.errors import BadResponse, OffsetOutOfRange, ReadTimeout, UnknownPartition
from headrace.client.fetch import PartitionReader, measure_batches, read_fetch_response
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from headrace.protocol.batch import HEADER_BYTES, place_batch, read_header, split_batches
from headrace.protocol.fetch import FetchResponse, PartitionData
from tests.broker.processes import BrokerProcess
from tests.client.batches import batch, end_of, fresh_name, numbers, read_values, values_of, write


@pytest.mark.parametrize("fetch_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (5, 95), (37, 38), (50, 50), (99, 100)])
def test_a_range_is_read_whole(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, fetch_bytes: int
) -> None:
    write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 100, 10)))
    reader = PartitionReader(cluster, partition, start, end, fetch_bytes=fetch_bytes)
    assert values_of(reader, start, end) == numbers(start, end)


def test_pieces_are_whole_batches_that_follow_one_another(
    cluster: Cluster, partition: TopicPartition
) -> None:
    write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 1000, 10)))
    position = 15
    for piece in PartitionReader(cluster, partition, position, 905, fetch_bytes=2000):
        headers = [read_header(each) for each in split_batches(piece.batches)]
        assert sum(header.size for header in headers) == len(piece.batches)
        assert headers[0].base_offset <= position < headers[-1].next_offset == piece.next_offset
        position = piece.next_offset
    assert position == 910


def test_committed_readers_learn_of_aborted_transactions(cluster: Cluster, partition: TopicPartition) -> None:
    name = fresh_name("transaction")
    transaction = SharedTransaction.open(cluster, name)
    for start, committed in ((0, True), (10, False), (20, True), (30, False)):
        transaction.add([partition])
        write(
            cluster, partition, batch(numbers(start, start + 10), transaction.identity), transactional_id=name
        )
        transaction.commit() if committed else transaction.abort()
    SharedTransaction.open(cluster, name)  # returns when the markers are written
    assert read_values(cluster, partition) == numbers(0, 10) + numbers(20, 30)
    assert read_values(cluster, partition, read_committed=False) == numbers(0, 40)


def test_a_range_of_nothing_but_markers_ends(cluster: Cluster, partition: TopicPartition) -> None:
    name = fresh_name("transaction")
    transaction = SharedTransaction.open(cluster, name)
    transaction.add([partition])
    write(cluster, partition, batch([b"x"], transaction.identity), transactional_id=name)
    transaction.commit()
    SharedTransaction.open(cluster, name)
    assert end_of(cluster, partition) == 2
    assert values_of(PartitionReader(cluster, partition, 1, 2), 1, 2) == []


def test_an_open_transaction_is_waited_for_and_then_explained(
    cluster: Cluster, partition: TopicPartition, bootstrap: str
) -> None:
    name = fresh_name("transaction")
    transaction = SharedTransaction.open(cluster, name)
    transaction.add([partition])
    write(cluster, partition, batch([b"x"], transaction.identity), transactional_id=name)
    with (
        Cluster.of(bootstrap, timeout_s=2) as impatient,
        pytest.raises(ReadTimeout, match="an open transaction blocks readers at offset 0"),
    ):
        list(PartitionReader(impatient, partition, 0, 1))
    transaction.abort()


def test_a_range_beyond_the_end_is_waited_for_and_then_explained(
    cluster: Cluster, partition: TopicPartition, bootstrap: str
) -> None:
    write(cluster, partition, batch(numbers(0, 10)))
    with Cluster.of(bootstrap, timeout_s=2) as impatient:
        reader = iter(PartitionReader(impatient, partition, 0, 11))
        assert next(reader).next_offset == 10
        with pytest.raises(ReadTimeout, match="the partition ends at offset 10"):
            next(reader)


def test_offsets_that_are_removed_in_the_middle_are_named(
    cluster: Cluster, partition: TopicPartition, bootstrap: str
) -> None:
    write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 100, 10)))
    pieces = iter(PartitionReader(cluster, partition, 0, 100, fetch_bytes=1))
    assert next(pieces).next_offset == 10
    delete_records(bootstrap, partition, before=60)
    with pytest.raises(OffsetOutOfRange, match="retention or a deletion removed them") as gone:
        list(pieces)
    assert gone.value.partition == partition
    assert 10 <= gone.value.offset < 60  # the next piece may have been on its way already
    assert (gone.value.first, gone.value.end) == (60, 100)
    assert values_of(PartitionReader(cluster, partition, 60, 100), 60, 100) == numbers(60, 100)


def delete_records(bootstrap: str, partition: TopicPartition, *, before: int) -> None:
    admin = AdminClient(client_config(bootstrap))
    (deleted,) = admin.delete_records([Place(partition.topic, partition.partition, before)]).values()
    assert deleted.result(100).low_watermark == before


def test_offsets_that_never_were_are_named(cluster: Cluster, partition: TopicPartition) -> None:
    write(cluster, partition, batch(numbers(0, 10)))
    with pytest.raises(OffsetOutOfRange, match="was re-created") as gone:
        list(PartitionReader(cluster, partition, 50, 60))
    assert (gone.value.offset, gone.value.first, gone.value.end) == (50, 0, 10)


def test_a_partition_that_does_not_exist_is_explained(bootstrap: str) -> None:
    with Cluster.of(bootstrap, timeout_s=2) as cluster, pytest.raises(UnknownPartition):
        list(PartitionReader(cluster, TopicPartition(fresh_name("ghost"), 0), 0, 1))


def test_a_reader_that_is_dropped_half_way_leaves_the_connection_in_order(
    cluster: Cluster, partition: TopicPartition
) -> None:
    write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 100, 10)))
    dropped = iter(PartitionReader(cluster, partition, 0, 100, fetch_bytes=1))
    next(dropped)
    assert end_of(cluster, partition) == 100  # asked while the next piece is on its way
    next(dropped)
    del dropped
    assert read_values(cluster, partition) == numbers(0, 100)


def test_two_readers_take_turns_on_one_connection(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    for partition in partitions[:2]:
        write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 50, 10)))
    readers = [PartitionReader(cluster, partition, 0, 50, fetch_bytes=1) for partition in partitions[:2]]
    pairs = list(itertools.chain.from_iterable(zip(*readers, strict=True)))
    assert values_of(pairs[::2], 0, 50) == values_of(pairs[1::2], 0, 50) == numbers(0, 50)


def test_a_broker_may_be_killed_in_the_middle(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Cluster.of(broker.address) as cluster:
        create_topics(cluster, [NewTopic(name="topic", partitions=1)])
        partition = TopicPartition("topic", 0)
        write(cluster, partition, *(batch(numbers(base, base + 10)) for base in range(0, 1000, 10)))
        pieces = iter(PartitionReader(cluster, partition, 0, 1000, fetch_bytes=5000))
        read = [next(pieces), next(pieces)]
        broker.kill()
        broker.start()
        read += pieces
        assert values_of(read, 0, 1000) == numbers(0, 1000)


@given(sizes=st.lists(st.integers(1, 5), max_size=6), end=st.integers(1, 40), data=st.data())
def test_only_whole_batches_before_the_end_are_measured(
    sizes: list[int], end: int, data: st.DataObject
) -> None:
    log = [placed(batch([b"v"] * size), sum(sizes[:place])) for place, size in enumerate(sizes)]
    torn = placed(batch([b"v"] * 9), sum(sizes))
    torn = torn[: data.draw(st.integers(0, len(torn) - 1))]
    kept = [each for each in log if read_header(each).base_offset < end]
    sees_end = len(kept) < len(log) or (sum(sizes) >= end and len(torn) >= HEADER_BYTES)
    size, next_offset = measure_batches(memoryview(b"".join([*log, torn])), end)
    assert size == sum(len(each) for each in kept)
    after_kept = read_header(kept[-1]).next_offset if kept else -1
    assert next_offset == (max(end, after_kept) if sees_end else after_kept)


def placed(each: bytearray, offset: int) -> bytearray:
    place_batch(each, offset, 0)
    return each


def test_a_batch_without_a_length_is_a_fault_of_the_peer() -> None:
    with pytest.raises(BadResponse, match="a record batch of 0 bytes at offset 0"):
        measure_batches(memoryview(bytes(100)), 10)


def test_a_response_may_list_any_number_of_aborted_transactions() -> None:
    aborted = [(producer_id, producer_id * 2) for producer_id in range(20_000)]
    response = FetchResponse(12, 1)
    response.begin(0, 0, 1)
    response.begin_topic("topic", 1)
    response.add_partition(PartitionData(0, 0, aborted=aborted), None)
    response.end_topic()
    frame = b"".join(bytes(chunk) for chunk in response.finish() if isinstance(chunk, bytes))
    (partition,) = read_fetch_response(memoryview(frame)[4:])
    assert partition.aborted == tuple(aborted)
