"""Group APIs over the wire, in every version."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import MAX_METADATA_BYTES
from headrace.testing import broker
from tests.broker.groups.harness import subscription
from tests.broker.groups.requests import HEARTBEAT, JOIN, LEAVE, PROTOCOLS, enter, join, stable, sync
from tests.broker.wire_client import METADATA, WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing import EmbeddedBroker

FIND, DESCRIBE, LIST, DELETE = 10, 15, 16, 42
NONE = ErrorCode.none


@pytest.fixture
def wire(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as wire:
        wire.create_topic("orders", 2)
        yield wire


@pytest.mark.parametrize("version", range(10))
def test_a_single_consumer_joins_in_every_version(wire: WireClient, version: int) -> None:
    first = join(wire, version)
    assert (first.error_code is ErrorCode.member_id_required) == (version >= 4)
    joined = enter(wire, version, group_id="h")
    assert joined.error_code is NONE
    assert (joined.generation_id, joined.protocol_name, joined.leader) == (1, "range", joined.member_id)
    assert [(each.member_id, each.metadata) for each in joined.members] == [
        (joined.member_id, subscription("orders"))
    ]
    assert getattr(joined, "protocol_type", "consumer") == "consumer"


@pytest.mark.parametrize("version", range(10))
def test_a_rejected_join_can_be_decoded_in_every_version(wire: WireClient, version: int) -> None:
    answer = join(wire, version, "c-unheard-of")
    assert (answer.error_code, answer.member_id) == (ErrorCode.unknown_member_id, "c-unheard-of")
    assert answer.protocol_name == ("" if version < 7 else None)


@pytest.mark.parametrize("version", range(6))
def test_the_leader_gets_its_assignment_in_every_version(wire: WireClient, version: int) -> None:
    answer = sync(wire, enter(wire), version)
    assert (answer.error_code, answer.assignment) == (NONE, b"work")
    assert getattr(answer, "protocol_name", "range") == "range"


def test_a_group_refuses_more_metadata_than_one_record_may_hold(wire: WireClient) -> None:
    large = [{"name": "range", "metadata": bytes(MAX_METADATA_BYTES)}]
    assert join(wire, 2, protocols=large).error_code is ErrorCode.group_max_size_reached
    joined = enter(wire)
    assignments = [{"member_id": joined.member_id, "assignment": bytes(MAX_METADATA_BYTES + 1)}]
    assert sync(wire, joined, assignments=assignments).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_from_version_5_on_a_sync_names_its_protocol(wire: WireClient, missing: str) -> None:
    answer = sync(wire, enter(wire), 5, **{missing: None})
    assert answer.error_code is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_succeed_in_every_version(wire: WireClient, version: int) -> None:
    joined = stable(wire)
    beat = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
    assert wire.ask(HEARTBEAT, version, **beat).error_code is NONE
    old = beat | {"generation_id": 0}
    assert wire.ask(HEARTBEAT, version, **old).error_code is ErrorCode.illegal_generation


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_in_every_version(wire: WireClient, version: int) -> None:
    joined = stable(wire)
    wanted = (
        {"member_id": joined.member_id} if version < 3 else {"members": [{"member_id": joined.member_id}]}
    )
    answer = wire.ask(LEAVE, version, group_id="g", **wanted)
    assert answer.error_code is NONE
    assert [each.error_code for each in getattr(answer, "members", ())] == [NONE] * (version >= 3)
    assert group_state(wire) == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_an_unknown_member_cannot_leave_in_any_version(wire: WireClient, version: int) -> None:
    wanted = {"member_id": "x"} if version < 3 else {"members": [{"member_id": "x"}]}
    answer = wire.ask(LEAVE, version, group_id="g", **wanted)
    code = answer.error_code if version < 3 else answer.members[0].error_code
    assert code is ErrorCode.unknown_member_id


def test_a_static_member_that_rejoins_keeps_its_assignment(wire: WireClient) -> None:
    stable(wire, group_instance_id="i")
    back = join(wire, 9, group_instance_id="i")
    assert (back.error_code, back.generation_id, back.skip_assignment) == (NONE, 1, True)
    assert sync(wire, back, assignments=[], group_instance_id="i").assignment == b"work"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_outside_the_limits_is_rejected(wire: WireClient, session_ms: int) -> None:
    assert join(wire, session_timeout=session_ms).error_code is ErrorCode.invalid_session_timeout


def test_an_empty_group_id_is_rejected(wire: WireClient) -> None:
    joined = enter(wire)
    assert join(wire, group_id="").error_code is ErrorCode.invalid_group_id
    assert sync(wire, joined, group_id="").error_code is ErrorCode.invalid_group_id
    leave = wire.ask(LEAVE, 5, group_id="", members=[])
    beat = wire.ask(HEARTBEAT, 4, group_id="", generation_id=1, member_id="m")
    assert leave.error_code is beat.error_code is ErrorCode.invalid_group_id


def test_names_too_long_for_a_record_are_rejected(wire: WireClient) -> None:
    long = "x" * 40_000
    assert join(wire, group_id=long).error_code is ErrorCode.invalid_group_id
    assert join(wire, group_instance_id=long).error_code is ErrorCode.invalid_request
    assert join(wire, protocol_type=long).error_code is ErrorCode.invalid_request


def test_the_response_to_a_client_that_disconnects_is_dropped(
    wire: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    leader = stable(wire)
    with WireClient(headrace_broker.bootstrap) as other:
        assigned = join(other)
        request = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer"}
        other.send(JOIN, 9, group_id="g", member_id=assigned.member_id, protocols=PROTOCOLS, **request)
        beat = {"group_id": "g", "generation_id": 1, "member_id": leader.member_id}
        while wire.ask(HEARTBEAT, 4, **beat).error_code is NONE:
            pass
    rejoined = join(wire, 9, leader.member_id)
    assert (rejoined.generation_id, len(rejoined.members)) == (2, 2)


@pytest.mark.parametrize("version", range(7))
def test_every_coordinator_is_this_node(
    wire: WireClient, headrace_broker: EmbeddedBroker, version: int
) -> None:
    for key_type in (0, 1) if version > 0 else (0,):
        (found,) = find(wire, version, key_type)
        assert found.error_code is NONE
        assert f"{found.host}:{found.port}" == headrace_broker.bootstrap
        assert found.node_id == wire.ask(METADATA, 1, topics=[]).controller_id


def find(wire: WireClient, version: int, key_type: int) -> list[Any]:
    if version < 4:
        return [wire.ask(FIND, version, key="k", key_type=key_type)]
    answer = wire.ask(FIND, version, coordinator_keys=["k", "l"], key_type=key_type)
    assert [each.key for each in answer.coordinators] == ["k", "l"]
    return list(answer.coordinators[:1])


@pytest.mark.parametrize(("version", "key_type"), [(1, 9), (3, 2), (5, 2), (6, 3)])
def test_a_coordinator_of_an_unknown_kind_is_an_invalid_request(
    wire: WireClient, version: int, key_type: int
) -> None:
    (found,) = find(wire, version, key_type)
    assert (found.error_code, found.node_id) == (ErrorCode.invalid_request, -1)


def test_share_groups_are_found_from_version_6_on(wire: WireClient) -> None:
    assert find(wire, 6, 2)[0].error_code is NONE


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(wire: WireClient, version: int) -> None:
    joined = stable(wire, group_instance_id="i")
    found, missing = wire.ask(DESCRIBE, version, groups=["g", "h"], include_authorized_operations=True).groups
    assert (found.error_code, found.group_state, found.protocol_data) == (NONE, "Stable", "range")
    (member,) = found.members
    assert (member.member_id, member.member_assignment) == (joined.member_id, b"work")
    assert member.member_metadata == subscription("orders")
    assert member.client_host == "/127.0.0.1"
    assert (version < 4) or member.group_instance_id == "i"
    assert missing.group_state == "Dead"
    assert missing.error_code is (NONE if version < 6 else ErrorCode.group_id_not_found)


def test_authorized_operations_are_returned_on_request(wire: WireClient) -> None:
    stable(wire)
    asked = wire.ask(DESCRIBE, 5, groups=["g"], include_authorized_operations=True)
    unasked = wire.ask(DESCRIBE, 5, groups=["g"], include_authorized_operations=False)
    assert asked.groups[0].authorized_operations == 0b1101_0100_1000
    assert unasked.groups[0].authorized_operations == -(2**31)


def group_state(wire: WireClient) -> str:
    answer = wire.ask(DESCRIBE, 5, groups=["g"], include_authorized_operations=False)
    return str(answer.groups[0].group_state)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(wire: WireClient, version: int) -> None:
    stable(wire)
    answer = wire.ask(LIST, version)
    assert answer.error_code is NONE
    (group,) = answer.groups
    assert (group.group_id, group.protocol_type) == ("g", "consumer")
    assert getattr(group, "group_state", "Stable") == "Stable"
    assert getattr(group, "group_type", "classic") == "classic"


@pytest.mark.parametrize(
    ("filters", "is_listed"),
    [
        ({"states_filter": ["stable"]}, True),
        ({"states_filter": ["EMPTY"]}, False),
        ({"types_filter": ["Classic"]}, True),
        ({"types_filter": ["share"]}, False),
        ({"states_filter": ["Stable"], "types_filter": ["consumer"]}, False),
    ],
)
def test_groups_are_listed_by_state_and_type(wire: WireClient, filters: Any, is_listed: bool) -> None:
    stable(wire)
    assert bool(wire.ask(LIST, 5, **filters).groups) is is_listed


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(wire: WireClient, version: int) -> None:
    joined = stable(wire)
    answer = wire.ask(DELETE, version, groups_names=["g", "h", "g"])
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", ErrorCode.non_empty_group),
        ("h", ErrorCode.group_id_not_found),
    ]
    wire.ask(LEAVE, 5, group_id="g", members=[{"member_id": joined.member_id}])
    assert wire.ask(DELETE, version, groups_names=["g"]).results[0].error_code is NONE
    assert group_state(wire) == "Dead"


def test_a_group_continues_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with broker(data=tmp_path) as first, WireClient(first.bootstrap) as wire:
        wire.create_topic("orders", 2)
        joined = stable(wire)
    with broker(data=tmp_path) as second, WireClient(second.bootstrap) as wire:
        beat = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
        assert wire.ask(HEARTBEAT, 4, **beat).error_code is NONE
        assert sync(wire, joined, assignments=[]).assignment == b"work"


def test_member_ids_consist_of_the_client_id_and_a_uuid(wire: WireClient) -> None:
    assert uuid.UUID(join(wire).member_id[-36:])
