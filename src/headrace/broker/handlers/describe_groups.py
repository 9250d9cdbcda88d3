"""DescribeGroups (15), versions 0–6: the state of groups and what each member was given.

A group that is not there is Dead without an error up to version 5, and GROUP_ID_NOT_FOUND from version 6 on.
Metadata and protocol are shown only while the group is stable. There are no ACLs yet, so the authorized
operations (version 3) are all operations of a group. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.groups.group import GroupDescription, MemberDescription
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 6)

_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS = 3, 6, 8, 10, 11
ALL_OPERATIONS: Final = sum(
    1 << bit for bit in (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
)
NOT_ASKED: Final = -(2**31)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Each group that was asked for, in that order; one that is named twice is described once."""
    wants_operations = getattr(request, "include_authorized_operations", False)
    operations = ALL_OPERATIONS if wants_operations else NOT_ASKED
    once = dict.fromkeys(request.groups)
    bodies = [_body(broker, group_id, context.version) async for group_id in context.time_slice.over(once)]
    return {"groups": [{**body, "authorized_operations": operations} for body in bodies]}


def _body(broker: Broker, group_id: str, version: int) -> dict[str, Any]:
    description = broker.groups.describe(group_id)
    return _missing(group_id, version) if description is None else _present(description)


def _missing(group_id: str, version: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none,
        "error_message": f"Group {group_id} not found.",
        "group_id": group_id,
        "group_state": GroupState.DEAD.value,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


def _present(group: GroupDescription) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.group_id,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [_member(member) for member in group.members],
    }


def _member(member: MemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }
