"""Joining a group."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from tests.broker.groups.harness import REBALANCE_MS, SESSION_MS, GroupHarness


def test_a_new_member_receives_its_id_and_joins_again_with_it():
    group = GroupHarness()
    first = group.joined(group.join(version=4))
    assert first.error is ErrorCode.member_id_required
    assert first.member_id.startswith("c-")
    second = group.join(first.member_id)
    group.advance(0)
    assert group.joined(second).error is ErrorCode.none
    assert group.joined(second).member_id == first.member_id


def test_before_version_4_a_new_member_joins_in_one_step():
    group = GroupHarness()
    request_id = group.join(version=3)
    group.advance(0)
    assert group.joined(request_id).error is ErrorCode.none
    assert group.joined(request_id).generation == 1


def test_a_new_static_member_joins_in_one_step():
    group = GroupHarness()
    request_id = group.join(instance="i")
    group.advance(0)
    assert group.joined(request_id).error is ErrorCode.none
    assert group.joined(request_id).member_id.startswith("i-")


def test_the_first_member_leads_and_receives_all_members():
    group = GroupHarness()
    requests = [group.enter(), group.enter()]
    group.advance(0)
    leader, follower = (group.joined(request_id) for request_id in requests)
    assert leader.leader == follower.leader == leader.member_id
    assert [member.member_id for member in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()


def test_members_that_join_within_the_initial_delay_are_in_the_first_generation():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = group.enter()
    group.advance(2_000)
    second = group.enter()
    group.advance(2_999)
    assert first not in group.responses
    group.advance(1_001)
    assert group.joined(first).generation == group.joined(second).generation == 1


def test_the_initial_delay_is_extended_at_most_to_the_rebalance_timeout():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = group.enter(rebalance_ms=8_000)
    for _ in range(7):
        group.advance(1_000)
        group.enter(rebalance_ms=8_000)
    assert first not in group.responses
    group.advance(2_000)
    assert group.joined(first).generation == 1


def test_without_more_members_the_initial_delay_is_not_extended():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    only = group.enter()
    group.advance(3_000)
    assert group.joined(only).generation == 1


@pytest.mark.parametrize(
    "other", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": ()}]
)
def test_a_client_without_a_common_protocol_is_rejected(other):
    group = GroupHarness()
    group.stable(1)
    assert group.joined(group.join(**other)).error is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("nothing", [{"protocol_type": ""}, {"protocols": ()}])
def test_an_empty_group_accepts_only_clients_with_a_protocol(nothing):
    group = GroupHarness()
    assert group.joined(group.join(**nothing)).error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_can_change_its_protocol_type():
    group = GroupHarness()
    group.leave(*group.stable(1))
    request_id = group.enter(protocol_type="connect")
    group.advance(0)
    assert group.joined(request_id).protocol_type == "connect"


def test_the_protocol_that_most_members_prefer_is_chosen():
    group = GroupHarness(initial_rebalance_delay_ms=1)
    range_first = (("range", b""), ("sticky", b""))
    sticky_first = (("sticky", b""), ("range", b""))
    requests = [group.enter(protocols=wish) for wish in (range_first, sticky_first, sticky_first)]
    group.advance(10)
    assert {group.joined(request_id).protocol for request_id in requests} == {"sticky"}


def test_a_protocol_that_one_member_lacks_is_not_chosen():
    group = GroupHarness(initial_rebalance_delay_ms=1)
    both = (("sticky", b""), ("range", b""))
    requests = [group.enter(protocols=wish) for wish in (both, both, (("range", b""),))]
    group.advance(10)
    assert {group.joined(request_id).protocol for request_id in requests} == {"range"}


def test_an_unknown_member_id_is_rejected():
    group = GroupHarness()
    group.stable(1)
    assert group.joined(group.join("c-unheard-of")).error is ErrorCode.unknown_member_id


def test_a_member_id_is_rejected_when_the_group_has_no_members_left():
    group = GroupHarness()
    (member,) = group.stable(1)
    group.leave(member)
    assert group.joined(group.join(member)).error is ErrorCode.unknown_member_id


def test_a_pending_member_expires_after_its_session_timeout():
    group = GroupHarness()
    assigned = group.joined(group.join())
    group.advance(SESSION_MS)
    assert group.joined(group.join(assigned.member_id)).error is ErrorCode.unknown_member_id


def test_a_rebalance_waits_for_a_pending_member():
    group = GroupHarness()
    (member,) = group.stable(1)
    assigned = group.joined(group.join())
    rejoin = group.join(member)
    assert rejoin not in group.responses
    group.join(assigned.member_id)
    assert group.joined(rejoin).generation == 2


def test_a_rebalance_completes_when_the_pending_member_expires():
    group = GroupHarness()
    (member,) = group.stable(1)
    group.join()
    rejoin = group.join(member)
    group.advance(SESSION_MS)
    assert group.joined(rejoin).generation == 2


def test_a_pending_id_with_an_instance_id_is_an_invalid_request():
    group = GroupHarness()
    assigned = group.joined(group.join())
    assert group.joined(group.join(assigned.member_id, instance="i")).error is ErrorCode.invalid_request


def test_a_full_group_rejects_new_members():
    group = GroupHarness(max_size=2)
    group.stable(2)
    refused = group.joined(group.join(version=3))
    assert refused.error is ErrorCode.group_max_size_reached
    assert refused.member_id == ""


def test_a_full_group_accepts_its_members_again():
    group = GroupHarness(max_size=2)
    leader, follower = group.stable(2)
    requests = [group.join(leader), group.join(follower)]
    assert [group.joined(request_id).error for request_id in requests] == [ErrorCode.none] * 2


def test_a_full_group_accepts_a_static_member_that_rejoins():
    group = GroupHarness(max_size=1)
    group.join(instance="i")
    group.advance(0)
    group.assign(group.group.members.leader)
    assert group.joined(group.join(instance="i")).error is ErrorCode.none


def test_a_follower_that_joins_a_stable_group_unchanged_gets_the_current_generation():
    group = GroupHarness()
    _, follower = group.stable(2)
    again = group.joined(group.join(follower))
    assert (again.error, again.generation) == (ErrorCode.none, group.group.generation)
    assert group.group.state is GroupState.STABLE


def test_a_follower_that_joins_a_stable_group_with_another_subscription_causes_a_rebalance():
    group = GroupHarness()
    _, follower = group.stable(2)
    group.join(follower, protocols=(("range", b"other"),))
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_causes_a_rebalance():
    group = GroupHarness()
    leader, _ = group.stable(2)
    group.join(leader)
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_lost_the_response_to_its_join_gets_it_again():
    group = GroupHarness()
    request_id = group.enter()
    group.advance(0)
    member = group.joined(request_id).member_id
    assert group.joined(group.join(member)) == group.joined(request_id)


def test_of_two_joins_of_one_member_the_first_is_rejected_and_the_second_succeeds():
    group = GroupHarness()
    leader, follower = group.stable(2)
    first = group.join(leader)
    second = group.join(leader)
    group.join(follower)
    assert group.joined(first).error is ErrorCode.rebalance_in_progress
    assert group.joined(second).generation == group.group.generation


def test_the_first_join_of_a_member_times_out():
    group = GroupHarness(new_member_join_timeout_ms=20_000)
    group.stable(1, rebalance_ms=600_000, session_ms=60_000)
    waiting = group.enter(session_ms=600_000)
    group.advance(20_000)
    assert group.joined(waiting).error is ErrorCode.unknown_member_id


def test_a_known_member_may_wait_for_a_join_longer_than_its_session_timeout():
    group = GroupHarness()
    leader, slow = group.stable(2)
    waiting = group.join(leader)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        group.advance(5_000)
        group.heartbeat(slow)
    assert waiting not in group.responses
    group.advance(5_000)
    assert group.joined(waiting).error is ErrorCode.none
