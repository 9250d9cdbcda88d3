"""Syncing: how members get their assignments."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from tests.broker.groups.harness import REBALANCE_MS, SESSION_MS, GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()


def two_joined(group: GroupHarness) -> tuple[str, str]:
    requests = [group.enter(), group.enter()]
    group.advance(0)
    leader, follower = (group.joined(request_id).member_id for request_id in requests)
    return leader, follower


def test_a_follower_waits_until_the_leader_has_sent_the_assignments(group):
    leader, follower = two_joined(group)
    waiting = group.sync(follower)
    assert waiting not in group.responses
    lead = group.sync(leader, {leader: b"mine", follower: b"yours"})
    assert (group.synced(waiting).assignment, group.synced(lead).assignment) == (b"yours", b"mine")
    assert group.group.state is GroupState.STABLE


def test_a_follower_that_syncs_after_the_leader_gets_its_response_immediately(group):
    leader, follower = two_joined(group)
    group.sync(leader, {follower: b"yours"})
    assert group.synced(group.sync(follower)).assignment == b"yours"


def test_a_member_without_an_assignment_gets_an_empty_one(group):
    leader, follower = two_joined(group)
    group.sync(leader, {leader: b"all"})
    assert group.synced(group.sync(follower)).assignment == b""


def test_assignments_sent_by_followers_are_ignored(group):
    leader, follower = two_joined(group)
    group.sync(follower, {follower: b"everything"})
    group.sync(leader, {leader: b"a", follower: b"b"})
    assert group.synced(group.sync(follower)).assignment == b"b"


def test_the_group_is_stored_before_assignments_are_sent(group):
    leader, follower = two_joined(group)
    group.sync(follower)
    group.sync(leader, {leader: b"a", follower: b"b"})
    assert {member.member_id: member.assignment for member in group.stored[-1].members} == {
        leader: b"a",
        follower: b"b",
    }


def test_an_older_generation_is_rejected(group):
    (member,) = group.stable(1)
    assert group.synced(group.sync(member, generation=0)).error is ErrorCode.illegal_generation


def test_an_unknown_member_is_rejected(group):
    group.stable(1)
    assert group.synced(group.sync("c-unheard-of")).error is ErrorCode.unknown_member_id


def test_an_empty_group_rejects_every_sync(group):
    assert group.synced(group.sync("c-1")).error is ErrorCode.unknown_member_id


@pytest.mark.parametrize("wrong", [{"protocol_type": "connect"}, {"protocol": "sticky"}])
def test_another_protocol_than_the_elected_one_is_rejected(group, wrong):
    (member,) = group.stable(1)
    assert group.synced(group.sync(member, **wrong)).error is ErrorCode.inconsistent_group_protocol


def test_the_response_contains_the_elected_protocol(group):
    (member,) = group.stable(1)
    reply = group.synced(group.sync(member, protocol_type="consumer", protocol="range"))
    assert (reply.error, reply.protocol_type, reply.protocol) == (ErrorCode.none, "consumer", "range")


def test_syncs_are_rejected_while_the_next_generation_is_prepared(group):
    leader, follower = group.stable(2)
    group.join(leader)
    assert group.synced(group.sync(follower)).error is ErrorCode.rebalance_in_progress


def test_pending_syncs_fail_when_a_rebalance_begins(group):
    _, follower = two_joined(group)
    waiting = group.sync(follower)
    group.enter()
    assert group.synced(waiting).error is ErrorCode.rebalance_in_progress


def test_of_two_syncs_of_one_member_the_first_is_rejected_and_the_second_succeeds(group):
    leader, follower = two_joined(group)
    first, second = group.sync(follower), group.sync(follower)
    group.sync(leader, {follower: b"yours"})
    assert group.synced(first).error is ErrorCode.rebalance_in_progress
    assert group.synced(second).assignment == b"yours"


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout(group):
    leader, silent = two_joined(group)
    group.sync(leader, {leader: b"a", silent: b"b"})
    for _ in range(REBALANCE_MS // 5_000):
        group.advance(5_000)
        group.heartbeat(leader)
        group.heartbeat(silent)
    assert silent not in group.group.members
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_never_syncs_is_replaced(group):
    leader, follower = two_joined(group)
    waiting = group.sync(follower)
    group.advance(SESSION_MS)
    assert group.synced(waiting).error is ErrorCode.rebalance_in_progress
    rejoin = group.joined(group.join(follower))
    assert rejoin.leader == follower
    assert leader not in group.group.members
