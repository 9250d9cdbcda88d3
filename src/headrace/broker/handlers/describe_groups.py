"""DescribeGroups (key 15), versions 0–6: the state of consumer groups, their members and assignments.

As in Apache Kafka, a missing group is Dead up to version 5, and GROUP_ID_NOT_FOUND from version 6; metadata
and protocol are empty unless the group is stable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from headrace.broker.request import OPERATIONS_NOT_ASKED
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.groups.coordinator import GroupDescription, MemberDescription
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 6)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns each group in the order of the request; duplicates are ignored."""
    wants_operations = getattr(request, "include_authorized_operations", False)
    unique = dict.fromkeys(request.groups)
    groups = [
        _body(broker, group_id, context)
        | {"authorized_operations": group_operations(context, group_id, requested=wants_operations)}
        async for group_id in context.time_slice.over(unique)
    ]
    return {"groups": groups}


def group_operations(context: RequestContext, group_id: str, *, requested: bool) -> int:
    """What the client may do with a group, if it asks for that."""
    if not requested or not context.allows(ResourceType.GROUP, group_id):
        return OPERATIONS_NOT_ASKED
    return context.authorized_operations(ResourceType.GROUP, group_id)


def _body(broker: Broker, group_id: str, context: RequestContext) -> dict[str, Any]:
    if not context.allows(ResourceType.GROUP, group_id):
        refused = {"error_code": ErrorCode.group_authorization_failed, "error_message": None}
        return _missing(group_id, context.version) | refused
    description = broker.groups.describe(group_id)
    return _missing(group_id, context.version) if description is None else _present(description)


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
