"""Requests of one connection begin in the order in which they were sent, also when one waits for the disk."""

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from headrace.testing import EmbeddedBroker, broker
from tests.broker.wire_client import CREATE_TOPICS, LIST_OFFSETS, WireClient, batch_of

OFFSET_COMMIT, OFFSET_FETCH, LEAVE_GROUP, DELETE_RECORDS, JOIN_GROUP, SYNC_GROUP = 8, 9, 13, 21, 11, 14
EARLIEST = -2
NO_GENERATION = -1
LARGE_COUNT = 3_000
"""Partitions of a request that takes several slices of the loop's time."""


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        client.create_topic("orders")
        yield client


def commit(client: WireClient, offset: int, member: str = "", generation: int = NO_GENERATION) -> bytes:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    return client.pack(
        OFFSET_COMMIT,
        2,
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member,
        retention_time=-1,
        topics=[{"name": "orders", "partitions": [partition]}],
    )


def fetch_offset(client: WireClient) -> bytes:
    topics = [{"name": "orders", "partition_indexes": [0]}]
    return client.pack(OFFSET_FETCH, 1, group_id="g", topics=topics)


def committed(answer: object) -> int:
    return answer.topics[0].partitions[0].committed_offset  # type: ignore[attr-defined,no-any-return]


def test_an_offset_that_is_fetched_behind_its_commit_is_the_new_one(client: WireClient) -> None:
    for offset in range(10, 30):
        client.send_bytes(commit(client, offset) + fetch_offset(client))
        client.receive()
        assert committed(client.receive()) == offset


@pytest.mark.parametrize("flush", ["os", "always"])
def test_a_commit_counts_although_its_member_leaves_right_behind_it(flush: str) -> None:
    from headrace.broker.config import Flush

    with broker(flush=Flush(flush)) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("orders")
        member, generation = join(client)
        client.send_bytes(commit(client, 77, member, generation) + leave(client, member))
        assert client.receive().topics[0].partitions[0].error_code is ErrorCode.none
        assert client.receive().error_code is ErrorCode.none
        client.send_bytes(fetch_offset(client))
        assert committed(client.receive()) == 77


def join(client: WireClient) -> tuple[str, int]:
    """A member of a stable group of one, and its generation."""
    answer = client.ask(
        JOIN_GROUP,
        2,
        group_id="g",
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    member, generation = answer.member_id, answer.generation_id
    assignments = [{"member_id": member, "assignment": b""}]
    client.ask(
        SYNC_GROUP, 0, group_id="g", generation_id=generation, member_id=member, assignments=assignments
    )
    return member, generation


def leave(client: WireClient, member: str) -> bytes:
    return client.pack(LEAVE_GROUP, 0, group_id="g", member_id=member)


def test_the_start_of_a_partition_is_the_new_one_behind_a_delete_of_its_records(client: WireClient) -> None:
    client.produce("orders", batch_of(b"a", b"b", b"c"))
    deleted = [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 2}]}]
    asked = [{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": EARLIEST}]}]
    client.send_bytes(
        client.pack(DELETE_RECORDS, 0, topics=deleted, timeout=1000)
        + client.pack(LIST_OFFSETS, 1, replica_id=-1, topics=asked)
    )
    assert client.receive().topics[0].partitions[0].low_watermark == 2
    assert client.receive().topics[0].partitions[0].offset == 2


def test_a_topic_can_be_written_to_right_behind_its_creation(client: WireClient) -> None:
    new = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    client.send_bytes(client.pack(CREATE_TOPICS, 2, topics=[new], timeout=1000, validate_only=False))
    client.send_produce("new", batch_of(b"tea"))
    assert client.receive().topics[0].error_code is ErrorCode.none
    assert client.receive().responses[0].partition_responses[0].error_code is ErrorCode.none


def test_a_commit_that_takes_many_slices_of_time_is_done_before_the_request_behind_it(
    client: WireClient,
) -> None:
    client.create_topic("wide", partitions=LARGE_COUNT)
    partitions = [
        {"partition_index": index, "committed_offset": 5, "committed_metadata": "x"}
        for index in range(LARGE_COUNT)
    ]
    large = client.pack(
        OFFSET_COMMIT,
        2,
        group_id="g",
        generation_id_or_member_epoch=NO_GENERATION,
        member_id="",
        retention_time=-1,
        topics=[{"name": "wide", "partitions": partitions}],
    )
    last = [{"name": "wide", "partition_indexes": [LARGE_COUNT - 1]}]
    client.send_bytes(large + client.pack(OFFSET_FETCH, 1, group_id="g", topics=last))
    assert len(client.receive().topics[0].partitions) == LARGE_COUNT
    assert committed(client.receive()) == 5
