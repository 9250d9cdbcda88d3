"""Heartbeats, session timeouts and leaving a group."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from headrace.broker.groups.messages import MemberIdentity
from tests.broker.groups.harness import REBALANCE_MS, SESSION_MS, GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    return GroupHarness()


def test_a_member_that_sends_heartbeats_stays(group):
    (member,) = group.stable(1)
    for _ in range(10):
        group.advance(SESSION_MS - 1)
        assert group.heartbeat(member) is ErrorCode.none


def test_a_member_is_removed_after_its_session_timeout(group):
    group.stable(1)
    group.advance(SESSION_MS - 1)
    assert group.group.state is GroupState.STABLE
    group.advance(1)
    assert group.group.state is GroupState.EMPTY


def test_the_others_rejoin_after_a_session_timeout(group):
    survivor, _ = group.stable(2)
    group.advance(SESSION_MS - 1)
    group.heartbeat(survivor)
    group.advance(1)
    assert group.heartbeat(survivor) is ErrorCode.rebalance_in_progress
    rejoin = group.joined(group.join(survivor))
    assert (rejoin.generation, len(rejoin.members)) == (2, 1)


def test_a_commit_counts_as_a_heartbeat(group):
    (member,) = group.stable(1)
    group.advance(SESSION_MS - 1)
    group.group.committed(member, group.now_ms)
    group.advance(SESSION_MS - 1)
    assert group.heartbeat(member) is ErrorCode.none


def test_heartbeats_succeed_before_the_first_sync(group):
    request_id = group.enter()
    group.advance(0)
    assert group.heartbeat(group.joined(request_id).member_id) is ErrorCode.none


def test_heartbeats_of_unknown_members_and_old_generations_are_rejected(group):
    (member,) = group.stable(1)
    assert group.heartbeat("c-unheard-of") is ErrorCode.unknown_member_id
    assert group.heartbeat(member, generation=0) is ErrorCode.illegal_generation


def test_the_others_rejoin_after_a_member_leaves(group):
    leaver, other = group.stable(2)
    assert group.leave(leaver) == [ErrorCode.none]
    assert group.heartbeat(other) is ErrorCode.rebalance_in_progress


def test_a_group_whose_last_member_leaves_is_empty_and_is_stored(group):
    (member,) = group.stable(1)
    group.leave(member)
    assert group.group.state is GroupState.EMPTY
    assert group.stored[-1].members == ()
    assert group.stored[-1].generation == 2


def test_several_members_leave_with_one_rebalance_and_one_result_each(group):
    first, second, third = group.stable(3)
    assert group.leave(first, "c-unheard-of", second) == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.none,
    ]
    assert group.joined(group.join(third)).generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance_id(group):
    group.join(instance="i")
    group.advance(0)
    assert group.leave(MemberIdentity(member_id="", instance_id="i")) == [ErrorCode.none]
    assert len(group.group.members) == 0


def test_an_unknown_instance_id_cannot_be_removed(group):
    group.stable(1)
    assert group.leave(MemberIdentity(member_id="", instance_id="i")) == [ErrorCode.unknown_member_id]


def test_a_static_member_cannot_be_removed_by_another_member_id(group):
    group.join(instance="i")
    group.advance(0)
    stranger = MemberIdentity(member_id="i-other", instance_id="i")
    assert group.leave(stranger) == [ErrorCode.fenced_instance_id]


def test_a_pending_member_that_leaves_causes_no_rebalance(group):
    group.stable(1)
    assigned = group.joined(group.join())
    assert group.leave(assigned.member_id) == [ErrorCode.none]
    assert group.group.state is GroupState.STABLE


def test_a_rebalance_completes_when_the_last_missing_member_leaves(group):
    leader, missing = group.stable(2)
    waiting = group.join(leader)
    group.leave(missing)
    assert group.joined(waiting).generation == 2


def test_the_pending_join_of_a_member_that_leaves_gets_a_response(group):
    leader, follower = group.stable(2)
    join = group.join(leader)
    group.leave(leader)
    assert group.joined(join).error is ErrorCode.unknown_member_id
    group.join(follower)
    sync = group.sync(follower)
    assert group.synced(sync).error is ErrorCode.none


def test_the_pending_sync_of_a_member_that_leaves_gets_a_response(group):
    requests = [group.enter(), group.enter()]
    group.advance(0)
    follower = group.joined(requests[1]).member_id
    waiting = group.sync(follower)
    group.leave(follower)
    assert group.synced(waiting).error is ErrorCode.unknown_member_id


def test_members_that_do_not_rejoin_in_time_are_removed(group):
    leader, slow = group.stable(2)
    waiting = group.join(leader)
    for _ in range(REBALANCE_MS // 5_000):
        group.heartbeat(slow)
        group.advance(5_000)
    assert group.joined(waiting).generation == 2
    assert slow not in group.group.members


def test_a_leader_that_does_not_rejoin_loses_the_lead(group):
    leader, follower = group.stable(2)
    changed = group.join(follower, protocols=(("range", b"other"),))
    for _ in range(REBALANCE_MS // 5_000):
        group.heartbeat(leader)
        group.advance(5_000)
    assert group.joined(changed).leader == follower


def test_generations_only_grow(group):
    seen = [group.group.generation]
    for _ in range(5):
        members = group.stable(1)
        seen.append(group.group.generation)
        group.leave(*members)
        seen.append(group.group.generation)
    assert seen == sorted(set(seen))


def test_a_deleted_group_fails_all_requests(group):
    leader, follower = group.stable(2)
    join = group.join(leader)
    group.group.delete(group.now_ms)
    group.leave()
    assert group.joined(join).error is ErrorCode.coordinator_not_available
    assert group.heartbeat(follower) is ErrorCode.coordinator_not_available
    assert group.joined(group.join()).error is ErrorCode.coordinator_not_available
