"""The requests of offsets over the wire: every version, and what each of them says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.records import OffsetKey, read_key, read_offset
from headrace.protocol.batch import split_batches
from headrace.protocol.records import Record, decode_batch
from headrace.testing import broker
from tests.broker.groups.requests import LEAVE, enter, stable
from tests.broker.wire_client import DELETE_TOPICS, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing import EmbeddedBroker

COMMIT, FETCH, DELETE = 8, 9, 47
INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN, TXN_COMMIT = 22, 25, 26, 28
NONE = ErrorCode.none
UNKNOWN = ErrorCode.unknown_topic_or_partition


@pytest.fixture
def wire(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as wire:
        yield wire


@pytest.fixture
def orders(wire: WireClient) -> UUID:
    """The id of the topic `orders`, which has two partitions."""
    topic_id: UUID = wire.create_topic("orders", 2).topic_id
    return topic_id


def commit(
    wire: WireClient, partitions: dict[int, int], version: int = 9, topic: Any = "orders", **fields: Any
) -> list[ErrorCode]:
    """Commit as a client that is no member, unless `fields` say otherwise."""
    metadata = fields.pop("metadata", "note")
    sent = [
        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
        for index, offset in partitions.items()
    ]
    topics = [{"name" if version < 10 else "topic_id": topic, "partitions": sent}]
    request = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    answer = wire.ask(COMMIT, version, **(request | fields))
    return [partition.error_code for partition in answer.topics[0].partitions]


def fetch(
    wire: WireClient, version: int = 9, topic: Any = "orders", partitions: Any = (0, 1), **fields: Any
) -> list[Any]:
    """The partitions of one topic, or of all topics when `topic` is None."""
    key = "name" if version < 10 else "topic_id"
    topics = None if topic is None else [{key: topic, "partition_indexes": partitions}]
    if version < 8:
        return _partitions(wire.ask(FETCH, version, group_id="g", topics=topics, **fields).topics)
    answer = wire.ask(FETCH, version, groups=[{"group_id": "g", "topics": topics}], **fields)
    (group,) = answer.groups
    assert (group.group_id, group.error_code) == ("g", NONE)
    return _partitions(group.topics)


def _partitions(topics: Any) -> list[Any]:
    return [partition for topic in topics for partition in topic.partitions]


@pytest.mark.parametrize("commit_version", range(2, 11))
@pytest.mark.parametrize("fetch_version", [1, 7, 8, 10])
def test_a_commit_is_fetched_in_every_version(
    wire: WireClient, orders: UUID, commit_version: int, fetch_version: int
) -> None:
    topics = ["orders" if version < 10 else orders for version in (commit_version, fetch_version)]
    assert commit(wire, {0: 42}, commit_version, topics[0]) == [NONE]
    first, second = fetch(wire, fetch_version, topics[1])
    assert (first.committed_offset, first.metadata, first.error_code) == (42, "note", NONE)
    assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", NONE)


@pytest.mark.parametrize("version", range(1, 11))
def test_a_group_that_is_not_there_has_no_offsets_and_no_error(
    wire: WireClient, orders: UUID, version: int
) -> None:
    found = fetch(wire, version, orders if version >= 10 else "orders")
    assert [(each.committed_offset, each.error_code) for each in found] == [(-1, NONE)] * 2


@pytest.mark.parametrize("version", range(2, 11))
def test_no_list_of_topics_means_all_of_them(wire: WireClient, orders: UUID, version: int) -> None:
    commit(wire, {1: 7, 0: 5})
    found = fetch(wire, version, None)
    assert [(each.partition_index, each.committed_offset) for each in found] == [(0, 5), (1, 7)]


def test_several_groups_are_fetched_with_one_request(wire: WireClient, orders: UUID) -> None:
    commit(wire, {0: 5})
    commit(wire, {0: 6}, group_id="h")
    wanted = [{"group_id": group, "topics": None} for group in ("h", "g", "i")]
    answer = wire.ask(FETCH, 9, groups=wanted)
    offsets = [[each.committed_offset for each in _partitions(group.topics)] for group in answer.groups]
    assert offsets == [[6], [5], []]


def test_a_leader_epoch_is_kept_from_version_6_on(wire: WireClient, orders: UUID) -> None:
    sent = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": 3,
        "committed_metadata": "",
    }
    topics = [{"name": "orders", "partitions": [sent]}]
    wire.ask(COMMIT, 6, group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)
    assert fetch(wire, 6, partitions=(0,))[0].committed_leader_epoch == 3


def test_partitions_that_are_not_there_are_refused_and_others_kept(wire: WireClient, orders: UUID) -> None:
    assert commit(wire, {0: 1, 2: 1, -1: 1}) == [NONE, UNKNOWN, UNKNOWN]
    assert commit(wire, {0: 1}, topic="nowhere") == [UNKNOWN]
    assert fetch(wire, partitions=(0,))[0].committed_offset == 1


def test_unknown_topic_ids_are_refused(wire: WireClient, orders: UUID) -> None:
    assert commit(wire, {0: 1}, 10, uuid4()) == [ErrorCode.unknown_topic_id]
    found = fetch(wire, 10, uuid4(), partitions=(0,))
    assert [(each.committed_offset, each.error_code) for each in found] == [(-1, ErrorCode.unknown_topic_id)]


def test_a_note_that_is_too_long_is_refused(wire: WireClient, orders: UUID) -> None:
    assert commit(wire, {0: 1}, metadata="x" * 4_097) == [ErrorCode.offset_metadata_too_large]
    assert commit(wire, {0: 1}, metadata="x" * 4_096) == [NONE]
    assert commit(wire, {0: 1}, metadata=None) == [NONE]


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)]
)
def test_a_generation_of_a_group_that_is_not_there_is_refused(
    wire: WireClient, orders: UUID, version: int, code: ErrorCode
) -> None:
    member = {"generation_id_or_member_epoch": 1, "member_id": "m"}
    assert commit(wire, {0: 1}, version, **member) == [code]


def test_members_commit_and_strangers_do_not(wire: WireClient, orders: UUID) -> None:
    joined = stable(wire)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert commit(wire, {0: 1}, **member) == [NONE]
    assert commit(wire, {0: 2}) == [ErrorCode.unknown_member_id]
    assert commit(wire, {0: 2}, **(member | {"member_id": "x"})) == [ErrorCode.unknown_member_id]
    old = member | {"generation_id_or_member_epoch": 0}
    assert commit(wire, {0: 2}, **old) == [ErrorCode.illegal_generation]
    assert fetch(wire, partitions=(0,))[0].committed_offset == 1


def test_a_commit_before_the_assignment_is_told_of_the_rebalance(wire: WireClient, orders: UUID) -> None:
    joined = enter(wire)
    member = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert commit(wire, {0: 1}, **member) == [ErrorCode.rebalance_in_progress]


def test_a_partition_that_is_not_there_is_said_even_to_strangers(wire: WireClient, orders: UUID) -> None:
    stable(wire)
    assert commit(wire, {0: 1, 9: 1}) == [ErrorCode.unknown_member_id, UNKNOWN]


def test_commits_are_records_of_the_internal_topic(wire: WireClient, orders: UUID) -> None:
    commit(wire, {1: 42})
    (record,) = stored(wire)
    assert read_key(record.key or b"") == OffsetKey("g", "orders", 1)
    committed = read_offset(record.value or b"")
    assert (committed.offset, committed.metadata, committed.expires_at_ms) == (42, "note", -1)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_old_client_may_name_a_retention_of_its_own(wire: WireClient, orders: UUID, version: int) -> None:
    commit(wire, {0: 1}, version, retention_time=60_000)
    committed = read_offset(stored(wire)[0].value or b"")
    assert committed.expires_at_ms == committed.committed_at_ms + 60_000


def stored(wire: WireClient) -> list[Record]:
    """Everything in the internal topic of offsets."""
    answer = wire.fetch({("__consumer_offsets", 0): 0})
    data = answer.responses[0].partitions[0].records
    return [record for batch in split_batches(memoryview(data)) for record in decode_batch(batch)]


@pytest.mark.parametrize("is_commit", [True, False])
def test_stable_offsets_wait_for_the_end_of_a_transaction(
    wire: WireClient, orders: UUID, is_commit: bool
) -> None:
    commit(wire, {0: 1})
    producer = wire.ask(INIT_PRODUCER_ID, 4, transactional_id="x", transaction_timeout=60_000)
    identity = {
        "transactional_id": "x",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
    }
    assert wire.ask(ADD_OFFSETS, 3, **identity, group_id="g").error_code is NONE
    sent = {"partition_index": 0, "committed_offset": 2, "committed_metadata": ""}
    topics = [{"name": "orders", "partitions": [sent]}]
    wire.ask(TXN_COMMIT, 3, **identity, group_id="g", topics=topics)
    first, second = fetch(wire, 9, require_stable=True)
    assert (first.error_code, first.committed_offset) == (ErrorCode.unstable_offset_commit, -1)
    assert second.error_code is NONE
    assert fetch(wire, 9)[0].committed_offset == 1
    assert wire.ask(END_TXN, 3, **identity, committed=is_commit).error_code is NONE
    assert fetch(wire, 9, require_stable=True)[0].committed_offset == (2 if is_commit else 1)


def delete(wire: WireClient, partitions: list[int], topic: str = "orders", group_id: str = "g") -> Any:
    wanted = {"name": topic, "partitions": [{"partition_index": index} for index in partitions]}
    return wire.ask(DELETE, 0, group_id=group_id, topics=[wanted])


def codes(answer: Any) -> list[ErrorCode]:
    assert answer.error_code is NONE
    return [partition.error_code for partition in _partitions(answer.topics)]


def test_offsets_are_deleted(wire: WireClient, orders: UUID) -> None:
    commit(wire, {0: 1, 1: 2})
    assert codes(delete(wire, [0, 5])) == [NONE, UNKNOWN]
    assert [each.committed_offset for each in fetch(wire)] == [-1, 2]


def test_offsets_of_topics_that_members_read_are_not_deleted(wire: WireClient, orders: UUID) -> None:
    wire.create_topic("other")
    joined = stable(wire)
    assert codes(delete(wire, [0])) == [ErrorCode.group_subscribed_to_topic]
    assert codes(delete(wire, [0], "other")) == [NONE]
    wire.ask(LEAVE, 5, group_id="g", members=[{"member_id": joined.member_id}])
    assert codes(delete(wire, [0])) == [NONE]


def test_offsets_of_other_groups_with_members_are_not_deleted(wire: WireClient, orders: UUID) -> None:
    enter(wire, protocol_type="connect")
    assert delete(wire, [0]).error_code is ErrorCode.non_empty_group
    assert delete(wire, [0], group_id="h").error_code is ErrorCode.group_id_not_found
    assert delete(wire, [0], group_id="").error_code is ErrorCode.invalid_group_id


def test_a_topic_that_is_made_again_starts_without_offsets(wire: WireClient, orders: UUID) -> None:
    commit(wire, {0: 9})
    wire.ask(DELETE_TOPICS, 5, topic_names=["orders"], timeout=10_000)
    wire.create_topic("orders", 2)
    assert [each.committed_offset for each in fetch(wire)] == [-1, -1]


def test_offsets_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    with broker(data=tmp_path) as first, WireClient(first.bootstrap) as wire:
        wire.create_topic("orders", 2)
        commit(wire, {0: 1, 1: 2})
        commit(wire, {0: 3})
    with broker(data=tmp_path) as second, WireClient(second.bootstrap) as wire:
        assert [each.committed_offset for each in fetch(wire)] == [3, 2]
