"""Static members: a restarted process keeps its assignment."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from tests.broker.groups.harness import SESSION_MS, GroupHarness


@pytest.fixture
def group() -> GroupHarness:
    """A stable group of the static members a (which leads) and b."""
    group = GroupHarness()
    group.join(instance="a")
    group.join(instance="b")
    group.advance(0)
    group.assign(*(member.id for member in group.group.members))
    return group


def member_id(group: GroupHarness, instance: str) -> str:
    found = group.group.members.static_member_id(instance)
    assert found is not None
    return found


def test_a_follower_that_rejoins_keeps_its_assignment_without_a_rebalance(group):
    old = member_id(group, "b")
    back = group.joined(group.join(instance="b"))
    assert back.member_id != old
    assert (back.error, back.generation, back.members) == (ErrorCode.none, 1, ())
    assert group.synced(group.sync(back.member_id, instance="b")).assignment == old.encode()
    assert group.group.state is GroupState.STABLE


def test_a_leader_that_rejoins_still_leads_and_skips_the_assignment(group):
    back = group.joined(group.join(instance="a", version=9))
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2
    assert group.group.state is GroupState.STABLE


def test_an_old_client_that_rejoins_as_leader_acts_as_a_follower(group):
    old = member_id(group, "a")
    back = group.joined(group.join(instance="a", version=8))
    assert back.leader == old != back.member_id
    assert back.members == ()
    assert not back.skip_assignment


def test_the_new_id_is_stored_with_the_old_assignment(group):
    old = member_id(group, "b")
    back = group.joined(group.join(instance="b"))
    stored = {member.member_id: member.assignment for member in group.stored[-1].members}
    assert stored[back.member_id] == old.encode()
    assert old not in stored


def test_the_process_that_was_replaced_is_fenced(group):
    old = member_id(group, "b")
    group.join(instance="b")
    assert group.heartbeat(old, instance="b") is ErrorCode.fenced_instance_id
    assert group.synced(group.sync(old, instance="b")).error is ErrorCode.fenced_instance_id
    assert group.joined(group.join(old, instance="b")).error is ErrorCode.fenced_instance_id


def test_a_pending_join_of_the_replaced_process_is_fenced(group):
    waiting = group.join(member_id(group, "a"), instance="a")
    group.join(instance="a")
    assert group.joined(waiting).error is ErrorCode.fenced_instance_id


def test_a_pending_sync_of_the_replaced_process_is_fenced():
    group = GroupHarness()
    group.join(instance="a")
    group.join(instance="b")
    group.advance(0)
    waiting = group.sync(member_id(group, "b"))
    group.join(instance="b")
    assert group.synced(waiting).error is ErrorCode.fenced_instance_id
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_rejoin_with_other_protocols_causes_a_rebalance(group):
    group.join(instance="b", protocols=(("range", b""),))
    assert group.group.state is GroupState.STABLE
    refused = group.joined(group.join(instance="b", protocols=(("sticky", b""),)))
    assert refused.error is ErrorCode.inconsistent_group_protocol


def test_a_preference_that_changes_the_elected_protocol_causes_a_rebalance():
    group = GroupHarness()
    both = (("range", b""), ("sticky", b""))
    group.join(instance="a", protocols=both)
    group.advance(0)
    group.assign(member_id(group, "a"))
    back = group.join(instance="a", protocols=both[::-1])
    assert group.joined(back).generation == 2
    assert group.joined(back).protocol == "sticky"


def test_an_unknown_instance_id_is_rejected(group):
    assert group.heartbeat(member_id(group, "b"), instance="z") is ErrorCode.unknown_member_id


def test_a_static_member_is_removed_after_its_session_timeout(group):
    leader = member_id(group, "a")
    group.advance(SESSION_MS - 1)
    group.heartbeat(leader, instance="a")
    group.advance(1)
    assert group.group.members.static_member_id("b") is None
    assert group.heartbeat(leader, instance="a") is ErrorCode.rebalance_in_progress


def test_a_static_member_that_misses_a_rebalance_remains_until_its_session_expires():
    group = GroupHarness()
    group.join(instance="a", session_ms=60_000, rebalance_ms=5_000)
    group.join(instance="b", session_ms=60_000, rebalance_ms=5_000)
    group.advance(0)
    group.assign(*(member.id for member in group.group.members))
    rejoin = group.join(member_id(group, "a"), instance="a", session_ms=60_000, rebalance_ms=5_000)
    group.advance(5_000)
    assert [member.instance_id for member in group.joined(rejoin).members] == ["a", "b"]


def test_a_static_leader_that_misses_a_rebalance_remains_as_a_follower():
    group = GroupHarness()
    group.join(instance="a", session_ms=60_000, rebalance_ms=5_000)
    group.join(instance="b", session_ms=60_000, rebalance_ms=5_000)
    group.advance(0)
    group.assign(*(member.id for member in group.group.members))
    follower = member_id(group, "b")
    changed = (("range", b"other"),)
    rejoin = group.join(follower, instance="b", protocols=changed, session_ms=60_000, rebalance_ms=5_000)
    group.advance(5_000)
    assert group.joined(rejoin).leader == follower
    assert [member.instance_id for member in group.joined(rejoin).members] == ["a", "b"]


def test_a_group_of_static_members_that_all_miss_a_rebalance_is_empty_after_their_sessions():
    group = GroupHarness()
    group.join(instance="a", session_ms=60_000, rebalance_ms=5_000)
    group.join(instance="b", session_ms=10_000, rebalance_ms=5_000)
    group.advance(0)
    group.assign(*(member.id for member in group.group.members))
    group.advance(59_999)
    assert group.group.state is GroupState.PREPARING_REBALANCE
    group.advance(1)
    assert group.group.state is GroupState.EMPTY
