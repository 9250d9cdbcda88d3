"""Positions of groups that have no members."""

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, RequestRefused
from headrace.client.offsets import commit_offsets, fetch_offsets
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import SharedTransaction
from tests.client.batches import fresh_name


def test_positions_are_kept_and_looked_up(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    group = fresh_name("group")
    commit_offsets(cluster, group, {partitions[0]: 12, partitions[2]: 7})
    assert fetch_offsets(cluster, group, partitions) == {partitions[0]: 12, partitions[2]: 7}
    commit_offsets(cluster, group, {partitions[0]: 3})
    assert fetch_offsets(cluster, group, partitions[:1]) == {partitions[0]: 3}


def test_a_group_that_nobody_knows_has_no_positions(
    cluster: Cluster, partitions: list[TopicPartition]
) -> None:
    assert fetch_offsets(cluster, fresh_name("group"), partitions) == {}
    assert fetch_offsets(cluster, fresh_name("group"), []) == {}


def test_metadata_that_is_too_long_is_refused(cluster: Cluster, partition: TopicPartition) -> None:
    with pytest.raises(RequestRefused, match=f"store the position of 'group' in {partition}: offset_meta"):
        commit_offsets(cluster, "group", {partition: 1}, metadata="x" * 5000)


def test_a_stable_position_waits_for_the_open_transaction(
    cluster: Cluster, partition: TopicPartition, bootstrap: str
) -> None:
    group = fresh_name("group")
    commit_offsets(cluster, group, {partition: 1})
    transaction = SharedTransaction.open(cluster, fresh_name("transaction"))
    transaction.commit_offsets(group, {partition: 2})
    with Cluster.of(bootstrap, timeout_s=2) as impatient:
        with pytest.raises(RequestRefused, match="unstable_offset_commit"):
            fetch_offsets(impatient, group, [partition])
        assert fetch_offsets(impatient, group, [partition], require_stable=False) == {partition: 1}
    transaction.commit()
    assert fetch_offsets(cluster, group, [partition]) == {partition: 2}


def test_a_broker_that_is_gone_is_explained() -> None:
    with Cluster.of("127.0.0.1:1", timeout_s=0.1) as cluster, pytest.raises(BrokerUnreachable):
        commit_offsets(cluster, "group", {TopicPartition("topic", 0): 1})
