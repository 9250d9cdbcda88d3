"""How clients come into a group, and what turns them away."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.states import GroupState
from tests.broker.group_harness import REBALANCE_MS, SESSION_MS, GroupHarness


def test_a_newcomer_is_told_its_id_and_joins_again_with_it():
    group = GroupHarness()
    first = group.joined(group.join(version=4))
    assert first.error is ErrorCode.member_id_required
    assert first.member_id.startswith("c-")
    second = group.join(first.member_id)
    group.advance(0)
    assert group.joined(second).error is ErrorCode.none
    assert group.joined(second).member_id == first.member_id


def test_before_version_4_a_newcomer_is_let_in_at_once():
    group = GroupHarness()
    ticket = group.join(version=3)
    group.advance(0)
    assert group.joined(ticket).error is ErrorCode.none
    assert group.joined(ticket).generation == 1


def test_a_static_newcomer_is_let_in_at_once():
    group = GroupHarness()
    ticket = group.join(instance="i")
    group.advance(0)
    assert group.joined(ticket).error is ErrorCode.none
    assert group.joined(ticket).member_id.startswith("i-")


def test_the_first_member_leads_and_sees_everybody():
    group = GroupHarness()
    tickets = [group.enter(), group.enter()]
    group.advance(0)
    leader, follower = (group.joined(ticket) for ticket in tickets)
    assert leader.leader == follower.leader == leader.member_id
    assert [member.member_id for member in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()


def test_an_initial_delay_lets_more_members_into_the_first_generation():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = group.enter()
    group.advance(2_000)
    second = group.enter()
    group.advance(2_999)
    assert first not in group.answers
    group.advance(1_001)
    assert group.joined(first).generation == group.joined(second).generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    first = group.enter(rebalance_ms=8_000)
    for _ in range(7):
        group.advance(1_000)
        group.enter(rebalance_ms=8_000)
    assert first not in group.answers
    group.advance(2_000)
    assert group.joined(first).generation == 1


def test_without_more_members_the_initial_delay_is_waited_once():
    group = GroupHarness(initial_rebalance_delay_ms=3_000)
    only = group.enter()
    group.advance(3_000)
    assert group.joined(only).generation == 1


@pytest.mark.parametrize(
    "other", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": ()}]
)
def test_a_client_without_a_common_protocol_is_refused(other):
    group = GroupHarness()
    group.stable(1)
    assert group.joined(group.join(**other)).error is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("nothing", [{"protocol_type": ""}, {"protocols": ()}])
def test_an_empty_group_takes_only_clients_that_speak_a_protocol(nothing):
    group = GroupHarness()
    assert group.joined(group.join(**nothing)).error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_may_take_up_another_protocol_type():
    group = GroupHarness()
    group.leave(*group.stable(1))
    ticket = group.enter(protocol_type="connect")
    group.advance(0)
    assert group.joined(ticket).protocol_type == "connect"


def test_the_protocol_that_most_members_prefer_is_chosen():
    group = GroupHarness(initial_rebalance_delay_ms=1)
    range_first = (("range", b""), ("sticky", b""))
    sticky_first = (("sticky", b""), ("range", b""))
    tickets = [group.enter(protocols=wish) for wish in (range_first, sticky_first, sticky_first)]
    group.advance(10)
    assert {group.joined(ticket).protocol for ticket in tickets} == {"sticky"}


def test_a_protocol_that_one_member_lacks_is_not_chosen():
    group = GroupHarness(initial_rebalance_delay_ms=1)
    both = (("sticky", b""), ("range", b""))
    tickets = [group.enter(protocols=wish) for wish in (both, both, (("range", b""),))]
    group.advance(10)
    assert {group.joined(ticket).protocol for ticket in tickets} == {"range"}


def test_an_unknown_member_id_is_refused():
    group = GroupHarness()
    group.stable(1)
    assert group.joined(group.join("c-unheard-of")).error is ErrorCode.unknown_member_id


def test_a_member_id_is_refused_when_the_group_has_no_members_left():
    group = GroupHarness()
    (member,) = group.stable(1)
    group.leave(member)
    assert group.joined(group.join(member)).error is ErrorCode.unknown_member_id


def test_a_newcomer_that_never_comes_back_is_forgotten_after_its_session_timeout():
    group = GroupHarness()
    told = group.joined(group.join())
    group.advance(SESSION_MS)
    assert group.joined(group.join(told.member_id)).error is ErrorCode.unknown_member_id


def test_a_rebalance_waits_for_a_newcomer_that_was_told_to_come_back():
    group = GroupHarness()
    (member,) = group.stable(1)
    told = group.joined(group.join())
    rejoin = group.join(member)
    assert rejoin not in group.answers
    group.join(told.member_id)
    assert group.joined(rejoin).generation == 2


def test_a_rebalance_goes_on_when_the_newcomer_it_waits_for_lapses():
    group = GroupHarness()
    (member,) = group.stable(1)
    group.join()
    rejoin = group.join(member)
    group.advance(SESSION_MS)
    assert group.joined(rejoin).generation == 2


def test_a_pending_id_with_an_instance_id_is_an_invalid_request():
    group = GroupHarness()
    told = group.joined(group.join())
    assert group.joined(group.join(told.member_id, instance="i")).error is ErrorCode.invalid_request


def test_a_full_group_refuses_newcomers():
    group = GroupHarness(max_size=2)
    group.stable(2)
    refused = group.joined(group.join(version=3))
    assert refused.error is ErrorCode.group_max_size_reached
    assert refused.member_id == ""


def test_a_full_group_lets_its_members_join_again():
    group = GroupHarness(max_size=2)
    leader, follower = group.stable(2)
    tickets = [group.join(leader), group.join(follower)]
    assert [group.joined(ticket).error for ticket in tickets] == [ErrorCode.none] * 2


def test_a_full_group_lets_a_static_member_come_back():
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


def test_a_leader_that_joins_again_causes_a_rebalance():
    group = GroupHarness()
    leader, _ = group.stable(2)
    group.join(leader)
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_a_member_that_lost_the_answer_to_its_join_gets_it_again():
    group = GroupHarness()
    ticket = group.enter()
    group.advance(0)
    member = group.joined(ticket).member_id
    assert group.joined(group.join(member)) == group.joined(ticket)


def test_of_two_joins_of_one_member_the_first_is_sent_away_and_the_second_answered():
    group = GroupHarness()
    leader, follower = group.stable(2)
    first = group.join(leader)
    second = group.join(leader)
    group.join(follower)
    assert group.joined(first).error is ErrorCode.rebalance_in_progress
    assert group.joined(second).generation == group.group.generation


def test_a_new_member_that_waits_for_too_long_is_sent_away():
    group = GroupHarness(new_member_join_timeout_ms=20_000)
    group.stable(1, rebalance_ms=600_000, session_ms=60_000)
    waiting = group.enter(session_ms=600_000)
    group.advance(20_000)
    assert group.joined(waiting).error is ErrorCode.unknown_member_id


def test_a_known_member_may_wait_for_a_join_longer_than_its_session():
    group = GroupHarness()
    leader, slow = group.stable(2)
    waiting = group.join(leader)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        group.advance(5_000)
        group.heartbeat(slow)
    assert waiting not in group.answers
    group.advance(5_000)
    assert group.joined(waiting).error is ErrorCode.none
