"""A topic's bound over the wire: who waits, who does not, and what ends a wait."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker import connection
from headrace.broker.overflow import manager
from headrace.protocol.batch import TRANSACTIONAL
from headrace.testing import EmbeddedBroker, broker
from tests.broker.processes import wait_until
from tests.broker.wire_client import INIT_PRODUCER_ID, WireClient, batch_of

DESCRIBE_CONFIGS, OFFSET_COMMIT, DELETE_GROUPS, DELETE_RECORDS, OFFSET_DELETE = 32, 8, 42, 21, 47
ADD_PARTITIONS, END_TXN = 24, 26
BLOCK = {
    "headrace_overflow": "block",
    "headrace_overflow_records": "2",
    "headrace_overflow_groups": "mailer,stock",
}


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        yield client


@pytest.fixture
def other(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    """A second connection, for requests while the first one waits."""
    with WireClient(headrace_broker.bootstrap) as other:
        yield other


def status(client: WireClient, topic: str = "orders") -> dict[str, Any]:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    answer = client.ask(
        DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
    )
    (config,) = (each for each in answer.results[0].configs if each.name == "headrace.overflow.status")
    assert config.read_only
    return dict(json.loads(config.value)[0])


def commit(client: WireClient, offset: int, group: str = "mailer", topic: str = "orders") -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": None,
    }
    answer = client.ask(
        OFFSET_COMMIT,
        8,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": topic, "partitions": [partition]}],
    )
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


def fill(client: WireClient, topic: str = "orders", **settings: str) -> None:
    """A topic at its bound of two records, which group mailer has still to read."""
    assert client.create_topic(topic, **(BLOCK | settings)).error_code is ErrorCode.none
    commit(client, 0, topic=topic)
    assert client.produce(topic, batch_of(b"a", b"b")).error_code is ErrorCode.none


def wait_for_waiting(client: WireClient, count: int = 1) -> None:
    wait_until(lambda: status(client)["waiting_batches"] == count, f"{count} batches that wait")


def result(client: WireClient) -> Any:
    return client.receive().responses[0].partition_responses[0]


def end(client: WireClient, topic: str = "orders") -> int:
    """The offset that comes next."""
    return int(client.fetch({(topic, 0): 0}).responses[0].partitions[0].high_watermark)


# What ends a wait


def test_a_commit_of_the_slowest_group_makes_room(client: WireClient, other: WireClient) -> None:
    fill(other)
    commit(other, 1, "stock")
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    commit(other, 2, "stock")
    assert status(other)["waiting_batches"] == 1
    commit(other, 1)
    answer = result(client)
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 2)


def test_a_group_that_is_deleted_holds_nobody_up(client: WireClient, other: WireClient) -> None:
    fill(other)
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    (deleted,) = other.ask(DELETE_GROUPS, 2, groups_names=["mailer"]).results
    assert deleted.error_code is ErrorCode.none
    assert result(client).base_offset == 2


def test_a_group_whose_offset_is_deleted_holds_nobody_up(client: WireClient, other: WireClient) -> None:
    fill(other)
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    assert other.ask(OFFSET_DELETE, 0, group_id="mailer", topics=topics).error_code is ErrorCode.none
    assert result(client).base_offset == 2


def test_records_that_are_deleted_make_room(client: WireClient, other: WireClient) -> None:
    fill(other)
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    topics = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 1}]}]
    other.ask(DELETE_RECORDS, 2, topics=topics, timeout=10_000)
    assert result(client).base_offset == 2


def test_the_end_of_a_topic_ends_the_wait(client: WireClient, other: WireClient) -> None:
    fill(other)
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    other.ask(20, 6, topics=[{"name": "orders", "topic_id": None}], timeout=10_000)
    assert result(client).error_code is ErrorCode.unknown_topic_or_partition


def test_time_ends_the_wait_with_an_error_that_says_who_is_behind(client: WireClient) -> None:
    fill(client, headrace_overflow_timeout_ms="20")
    answer = client.produce("orders", batch_of(b"c", b"d"))
    assert answer.error_code is ErrorCode.request_timed_out
    assert (
        "holds 2 records that group mailer has not read, and its limit is 2 records" in answer.error_message
    )
    found = status(client)
    assert (found["timed_out_records"], found["waiting_batches"], end(client)) == (2, 0, 2)


def test_a_broker_that_stops_keeps_nobody_waiting() -> None:
    with (
        broker() as embedded,
        WireClient(embedded.bootstrap) as client,
        WireClient(embedded.bootstrap) as other,
    ):
        fill(other)
        client.send_produce("orders", batch_of(b"c"))
        wait_for_waiting(other)
        embedded.stop()
        assert result(client).error_code is ErrorCode.request_timed_out


# What a wait does not hold up


def test_other_topics_of_the_same_connection_are_written_though_their_answers_wait_in_line(
    client: WireClient, other: WireClient
) -> None:
    fill(other)
    other.create_topic("free")
    client.send_produce("orders", batch_of(b"c"))
    client.send_produce("free", batch_of(b"at once"))
    wait_until(lambda: end(other, "free") == 1, "the record of the other topic")
    assert not client.has_answer()
    commit(other, 1)
    assert [result(client).base_offset, result(client).base_offset] == [2, 0]


def test_other_connections_are_answered_at_once(client: WireClient, other: WireClient) -> None:
    fill(other)
    other.create_topic("free")
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    assert other.produce("free", batch_of(b"at once")).base_offset == 0


def test_a_repeated_batch_is_answered_at_the_bound(client: WireClient) -> None:
    client.create_topic("orders", **BLOCK)
    commit(client, 0)
    writer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    for _ in range(2):
        assert client.produce("orders", batch_of(b"a", b"b", **writer)).base_offset == 0


# Order and memory


def test_nobody_passes_those_who_wait_even_with_a_batch_that_would_fit(
    client: WireClient, other: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    fill(other)
    commit(other, 1)
    with WireClient(headrace_broker.bootstrap) as third:
        client.send_produce("orders", batch_of(b"c", b"d"))
        wait_for_waiting(other)
        third.send_produce("orders", batch_of(b"e"))
        wait_for_waiting(other, 2)
        commit(other, 2)
        assert result(client).base_offset == 2
        commit(other, 4)
        assert result(third).base_offset == 4


def test_a_producers_next_batches_wait_behind_the_one_that_waits(
    client: WireClient, other: WireClient
) -> None:
    fill(other)
    for sequence in range(2):
        writer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        client.send_produce("orders", batch_of(b"c", **writer))
    wait_for_waiting(other, 2)
    commit(other, 2)
    assert [result(client).base_offset, result(client).base_offset] == [2, 3]


def test_when_one_has_waited_too_long_those_behind_it_try_again_with_it(client: WireClient) -> None:
    fill(client, headrace_overflow_timeout_ms="30")
    for sequence in range(3):
        writer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        client.send_produce("orders", batch_of(b"c", **writer))
    assert [result(client).error_code for _ in range(3)] == [ErrorCode.request_timed_out] * 3
    assert (status(client)["timed_out_records"], end(client)) == (3, 2)


def test_a_batch_larger_than_the_bound_is_taken_when_everything_was_read(client: WireClient) -> None:
    fill(client)
    commit(client, 2)
    assert client.produce("orders", batch_of(*[b"large"] * 5)).base_offset == 2


def test_what_waits_is_bounded_and_those_beyond_are_told_at_once(
    client: WireClient, other: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "MAX_DELAYED_BYTES", 300)
    fill(other)
    client.send_produce("orders", batch_of(b"." * 100))
    wait_for_waiting(other)
    answer = other.produce("orders", batch_of(b"." * 100))
    assert answer.error_code is ErrorCode.request_timed_out
    commit(other, 2)
    assert result(client).base_offset == 2


def test_a_connection_is_not_read_while_too_much_of_it_waits(
    client: WireClient, other: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_HELD_BYTES", 1)
    fill(other)
    other.create_topic("free")
    client.send_produce("orders", batch_of(b"c"))
    wait_for_waiting(other)
    client.send_produce("free", batch_of(b"in its turn"))
    assert [end(other, "free") for _ in range(20)] == [0] * 20
    commit(other, 2)
    assert [result(client).base_offset, result(client).base_offset] == [2, 0]


def test_a_producer_that_wants_no_answer_is_held_by_its_connection(
    client: WireClient, other: WireClient
) -> None:
    fill(other)
    client.send_produce("orders", batch_of(b"c"), acks=0)
    wait_for_waiting(other)
    client.send_produce("orders", batch_of(b"d"))
    wait_for_waiting(other, 2)
    commit(other, 2)
    assert result(client).base_offset == 3


# Transactions


def begin(client: WireClient, transactional_id: str) -> dict[str, int]:
    answer = client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id=transactional_id,
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


def test_a_batch_whose_transaction_ended_while_it_waited_is_not_stored(
    client: WireClient, other: WireClient
) -> None:
    fill(other)
    producer = begin(other, "shop")
    topics = [{"name": "orders", "partitions": [0]}]
    other.ask(
        ADD_PARTITIONS,
        3,
        v3_and_below_transactional_id="shop",
        v3_and_below_topics=topics,
        v3_and_below_producer_id=producer["producer_id"],
        v3_and_below_producer_epoch=producer["producer_epoch"],
    )
    late = batch_of(b"c", attributes=TRANSACTIONAL, base_sequence=0, **producer)
    client.send_produce("orders", late, transactional_id="shop")
    wait_for_waiting(other)
    begin(other, "shop")
    commit(other, 2)
    assert result(client).error_code is not ErrorCode.none
    answer = other.fetch({("orders", 0): 0}, isolation_level=1).responses[0].partitions[0]
    assert answer.last_stable_offset == answer.high_watermark


# Refusals


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"headrace_overflow": "block", "headrace_overflow_records": "5"}, "headrace.overflow.groups"),
        ({"headrace_overflow": "drop-oldest"}, "needs a limit"),
        ({"headrace_overflow_records": "5"}, "while headrace.overflow is buffer"),
        (
            {
                "headrace_overflow": "drop-oldest",
                "headrace_overflow_records": "5",
                "cleanup_policy": "compact",
            },
            "compacted topic",
        ),
        (
            {
                "headrace_overflow": "drop-newest",
                "headrace_overflow_bytes": "1000",
                "retention_bytes": "500",
            },
            "retention.bytes=500 deletes records before",
        ),
        (
            {
                "headrace_overflow": "drop-newest",
                "headrace_overflow_records": "5",
                "headrace_overflow_timeout_ms": "5",
            },
            "never delays producers",
        ),
        ({"headrace_overflow": "spill"}, "one of buffer, drop-oldest, drop-newest, block"),
        ({"headrace_overflow": "drop-oldest", "headrace_overflow_records": "0"}, "at least 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    client: WireClient, settings: dict[str, str], reason: str
) -> None:
    answer = client.create_topic("orders", **settings)
    assert answer.error_code is ErrorCode.invalid_config
    assert reason in answer.error_message


def test_a_topic_without_a_bound_shows_none(client: WireClient) -> None:
    client.create_topic("orders")
    with pytest.raises(ValueError, match="not enough values"):
        status(client)


def test_before_a_named_group_has_come_nobody_waits(client: WireClient) -> None:
    client.create_topic("orders", **BLOCK)
    for number in range(5):
        assert client.produce("orders", batch_of(b"a")).base_offset == number
    assert status(client)["backlog_records"] == 0


def test_a_group_that_goes_back_is_seen_at_once(client: WireClient) -> None:
    client.create_topic("orders", **(BLOCK | {"headrace_overflow_timeout_ms": "1"}))
    commit(client, 0)
    client.produce("orders", batch_of(b"a"))
    commit(client, 1)
    client.produce("orders", batch_of(b"b"))
    commit(client, 0)
    assert client.produce("orders", batch_of(b"c")).error_code is ErrorCode.request_timed_out
