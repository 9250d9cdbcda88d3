"""Fetch: when it answers, how much it gives, and what it says of partitions that cannot be read."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.protocol.batch import split_batches
from headrace.protocol.records import decode_batch
from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import (
    DELETE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    WireClient,
    batch_of,
)

ADD_PARTITIONS_TO_TXN, END_TXN = 24, 26
TRANSACTIONAL = 0x10
LONG_MS = 60_000
KILOBYTE = 1024


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        client.create_topic("orders")
        yield client


@pytest.fixture
def producer(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    """A second connection."""
    with WireClient(headrace_broker.bootstrap) as producer:
        yield producer


def partition_of(answer: Any) -> Any:
    """The one partition of an answer that has one."""
    ((partition,),) = (topic.partitions for topic in answer.responses)
    return partition


def values_of(partition: Any) -> list[bytes | None]:
    """The values of the records that a partition's answer holds."""
    batches = split_batches(memoryview(partition.records or b""))
    return [record.value for batch in batches for record in decode_batch(batch)]


# ---------------------------------------------------------------- when it answers


def test_a_fetch_of_nothing_waits_until_its_time_is_over(client: WireClient) -> None:
    began = time.monotonic()
    partition = partition_of(client.fetch({("orders", 0): 0}, max_wait=300))
    assert time.monotonic() - began >= 0.29
    assert (partition.error_code, partition.records) == (ErrorCode.none, b"")


def test_a_fetch_that_may_not_wait_is_answered_at_once(client: WireClient) -> None:
    assert partition_of(client.fetch({("orders", 0): 0}, max_wait=0)).high_watermark == 0
    assert partition_of(client.fetch({("orders", 0): 0}, max_wait=-1)).high_watermark == 0


def test_a_fetch_that_names_no_partition_is_answered_at_once(client: WireClient) -> None:
    assert client.fetch({}, max_wait=LONG_MS).responses == ()


def test_a_waiting_fetch_is_answered_as_soon_as_a_record_arrives(
    client: WireClient, producer: WireClient
) -> None:
    client.send_fetch({("orders", 0): 0}, max_wait=LONG_MS)
    producer.produce("orders", batch_of(b"tea"))
    assert values_of(partition_of(client.receive())) == [b"tea"]


def test_a_waiting_fetch_is_answered_when_there_is_as_much_as_it_asked_for(
    client: WireClient, producer: WireClient
) -> None:
    client.send_fetch({("orders", 0): 0}, max_wait=LONG_MS, min_bytes=3000)
    for name in (b"a", b"b", b"c"):
        assert not client.has_answer()
        producer.produce("orders", batch_of(name * 1000))
    assert len(values_of(partition_of(client.receive()))) == 3


def test_bytes_of_all_partitions_count_together(client: WireClient, producer: WireClient) -> None:
    client.create_topic("cups")
    client.send_fetch({("orders", 0): 0, ("cups", 0): 0}, max_wait=LONG_MS, min_bytes=1500)
    producer.produce("orders", batch_of(bytes(KILOBYTE)))
    producer.produce("cups", batch_of(bytes(KILOBYTE)))
    answer = client.receive()
    assert [bool(topic.partitions[0].records) for topic in answer.responses] == [True, True]


def test_a_fetch_that_never_gets_enough_is_answered_in_time_with_what_there_is(
    client: WireClient, producer: WireClient
) -> None:
    client.send_fetch({("orders", 0): 0}, max_wait=300, min_bytes=2**31 - 1)
    producer.produce("orders", batch_of(b"tea"))
    assert values_of(partition_of(client.receive())) == [b"tea"]


def test_a_fetch_that_waits_uses_no_processor_time(headrace_broker: EmbeddedBroker) -> None:
    clients = [WireClient(headrace_broker.bootstrap) for _ in range(20)]
    for client in clients:
        client.create_topic("orders")
        client.send_fetch({("orders", 0): 0}, max_wait=1000)
    before = time.process_time()
    for client in clients:
        client.receive()
        client.close()
    assert time.process_time() - before < 0.5


def test_a_topic_that_is_deleted_ends_the_wait_for_it(client: WireClient, producer: WireClient) -> None:
    client.send_fetch({("orders", 0): 0}, max_wait=LONG_MS)
    producer.ask(DELETE_TOPICS, 5, topic_names=["orders"], timeout=1000)
    assert partition_of(client.receive()).error_code is ErrorCode.unknown_topic_or_partition


def test_a_thousand_batches_wake_many_readers_and_all_get_everything(
    headrace_broker: EmbeddedBroker, producer: WireClient
) -> None:
    producer.create_topic("orders")
    read: dict[int, int] = {}

    def follow(number: int) -> None:
        with WireClient(headrace_broker.bootstrap) as reader:
            offset = 0
            while offset < 1000:
                answer = partition_of(reader.fetch({("orders", 0): offset}, max_wait=LONG_MS))
                offset += len(values_of(answer))
            read[number] = offset

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        producer.send_produce("orders", batch_of(b"tea"))
    for thread in threads:
        thread.join(100)
    assert read == dict.fromkeys(range(8), 1000)


# ---------------------------------------------------------------- how much it gives


def test_a_partition_gives_whole_batches_up_to_its_limit(client: WireClient) -> None:
    for number in range(10):
        client.produce("orders", batch_of(bytes([number]) * 8 * KILOBYTE))
    partition = partition_of(client.fetch({("orders", 0): 0}, partition_bytes=30 * KILOBYTE))
    assert 1 <= len(values_of(partition)) <= 3
    assert len(partition.records) <= 30 * KILOBYTE


def test_a_first_batch_above_every_limit_is_given_whole(client: WireClient) -> None:
    client.produce("orders", batch_of(bytes(100 * KILOBYTE)))
    client.produce("orders", batch_of(bytes(100 * KILOBYTE)))
    for limits in ({"partition_bytes": 1}, {"max_bytes": 1}, {"max_bytes": 0, "partition_bytes": 0}):
        partition = partition_of(client.fetch({("orders", 0): 0}, **limits))
        assert len(values_of(partition)) == 1


def test_only_the_first_partition_with_records_may_exceed_the_limit_of_the_answer(client: WireClient) -> None:
    names = ("empty", "orders", "cups", "spoons")
    for name in names:
        client.create_topic(name)
    for name in names[1:]:
        client.produce(name, batch_of(bytes(100 * KILOBYTE)))
    for limit in (0, 1, 50 * KILOBYTE):
        answer = client.fetch(dict.fromkeys(((name, 0) for name in names), 0), max_bytes=limit)
        assert [len(topic.partitions[0].records) > 0 for topic in answer.responses] == [
            False,
            True,
            False,
            False,
        ]


def test_limits_below_zero_are_limits_of_zero(client: WireClient) -> None:
    client.produce("orders", batch_of(b"tea"))
    client.produce("orders", batch_of(b"cup"))
    partition = partition_of(client.fetch({("orders", 0): 0}, max_bytes=-5, partition_bytes=-(2**31)))
    assert values_of(partition) == [b"tea"]


def test_a_read_may_begin_inside_a_batch_which_comes_whole(client: WireClient) -> None:
    client.produce("orders", batch_of(b"a", b"b", b"c"))
    assert values_of(partition_of(client.fetch({("orders", 0): 1}))) == [b"a", b"b", b"c"]


# ---------------------------------------------------------------- what it says


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
def test_an_offset_outside_the_log_is_said_with_the_bounds(client: WireClient, offset: int) -> None:
    client.produce("orders", batch_of(b"tea"))
    partition = partition_of(client.fetch({("orders", 0): offset}, max_wait=LONG_MS))
    assert partition.error_code is ErrorCode.offset_out_of_range
    assert (partition.log_start_offset, partition.high_watermark) == (0, 1)


def test_a_topic_or_partition_that_is_not_there_does_not_spoil_the_others(client: WireClient) -> None:
    client.produce("orders", batch_of(b"tea"))
    answer = client.fetch({("nobody", 0): 0, ("orders", 7): 0, ("orders", 0): 0}, max_wait=LONG_MS)
    codes = [partition.error_code for topic in answer.responses for partition in topic.partitions]
    assert sorted(codes) == [ErrorCode.none, *[ErrorCode.unknown_topic_or_partition] * 2]


def test_an_epoch_that_no_leader_had_is_refused(client: WireClient) -> None:
    partition = partition_of(client.fetch({("orders", 0): 0}, leader_epoch=9))
    assert partition.error_code is ErrorCode.unknown_leader_epoch


def test_topics_are_found_by_id(client: WireClient) -> None:
    client.produce("orders", batch_of(b"tea"))
    (topic,) = client.ask(METADATA, 12, **metadata_of("orders")).topics
    answer = client.ask(FETCH, 13, **fetch_by_id(topic.topic_id))
    assert answer.responses[0].topic_id == topic.topic_id
    assert values_of(answer.responses[0].partitions[0]) == [b"tea"]


def test_the_id_of_a_deleted_topic_is_unknown_even_when_its_name_is_back(client: WireClient) -> None:
    (topic,) = client.ask(METADATA, 12, **metadata_of("orders")).topics
    client.ask(DELETE_TOPICS, 5, topic_names=["orders"], timeout=1000)
    client.create_topic("orders")
    answer = client.ask(FETCH, 13, **fetch_by_id(topic.topic_id))
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id


# ---------------------------------------------------------------- transactions


def test_a_reader_of_committed_records_stops_at_the_open_transaction(client: WireClient) -> None:
    client.produce("orders", batch_of(b"before"))
    write_in_transaction(client, b"open")
    partition = partition_of(client.fetch({("orders", 0): 0}, isolation_level=1))
    assert values_of(partition) == [b"before"]
    assert (partition.last_stable_offset, partition.high_watermark) == (1, 2)
    assert partition.aborted_transactions == ()


def test_a_reader_of_all_records_sees_the_open_transaction(client: WireClient) -> None:
    write_in_transaction(client, b"open")
    partition = partition_of(client.fetch({("orders", 0): 0}, isolation_level=0))
    assert values_of(partition) == [b"open"]
    assert partition.aborted_transactions is None


def test_a_reader_of_committed_records_waits_for_the_end_of_the_transaction(
    client: WireClient, producer: WireClient
) -> None:
    identity = write_in_transaction(producer, b"open")
    client.send_fetch({("orders", 0): 0}, isolation_level=1, max_wait=LONG_MS)
    end_transaction(producer, identity, committed=True)
    assert values_of(partition_of(client.receive()))[0] == b"open"


def test_a_reader_of_committed_records_is_told_which_transactions_to_skip(client: WireClient) -> None:
    client.produce("orders", batch_of(b"before"))
    identity = write_in_transaction(client, b"gone")
    end_transaction(client, identity, committed=False)
    partition = partition_of(client.fetch({("orders", 0): 0}, isolation_level=1))
    assert [(entry.producer_id, entry.first_offset) for entry in partition.aborted_transactions] == [
        (identity[0], 1)
    ]
    assert partition.last_stable_offset == partition.high_watermark == 3


def write_in_transaction(client: WireClient, value: bytes) -> tuple[int, int]:
    """The producer id and epoch of a transaction that has written one record to `orders`."""
    started = client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id="t",
        transaction_timeout=LONG_MS,
        producer_id=-1,
        producer_epoch=-1,
    )
    identity = (started.producer_id, started.producer_epoch)
    client.ask(
        ADD_PARTITIONS_TO_TXN,
        3,
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1],
        v3_and_below_topics=[{"name": "orders", "partitions": [0]}],
    )
    batch = batch_of(
        value,
        attributes=TRANSACTIONAL,
        producer_id=identity[0],
        producer_epoch=identity[1],
        base_sequence=0,
    )
    assert client.produce("orders", batch, transactional_id="t").error_code is ErrorCode.none
    return identity


def end_transaction(client: WireClient, identity: tuple[int, int], *, committed: bool) -> None:
    """Commit or abort; returns when the markers are written."""
    answer = client.ask(
        END_TXN,
        3,
        transactional_id="t",
        producer_id=identity[0],
        producer_epoch=identity[1],
        committed=committed,
    )
    assert answer.error_code is ErrorCode.none


def metadata_of(topic: str) -> dict[str, Any]:
    return {
        "topics": [{"topic_id": None, "name": topic}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


def fetch_by_id(topic_id: object) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 2**20,
    }
    return {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 2**20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic_id": topic_id, "partitions": [partition]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
