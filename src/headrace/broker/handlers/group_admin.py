"""Administration of groups: DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.group import GroupState
from headrace.broker.request import OPERATIONS_NOT_ASKED
from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.groups.coordinator import GroupDescription, MemberDescription
    from headrace.broker.request import RequestContext


CLASSIC: Final = "classic"
SHARE: Final = "share"


async def describe_groups(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeGroups (key 15), versions 0–6: the state of consumer groups, their members and assignments.

    As in Apache Kafka, a missing group is Dead up to version 5, and GROUP_ID_NOT_FOUND from version 6;
    metadata and protocol are empty unless the group is stable.
    """
    wants_operations = getattr(request, "include_authorized_operations", False)
    unique = dict.fromkeys(request.groups)
    groups = [
        _describe_group(broker, group_id, context)
        | {"authorized_operations": group_operations(context, group_id, requested=wants_operations)}
        async for group_id in context.time_slice.over(unique)
    ]
    return {"groups": groups}


def group_operations(context: RequestContext, group_id: str, *, requested: bool) -> int:
    """What the client may do with a group, if it asks for that."""
    if not requested or not context.allows(ResourceType.GROUP, group_id):
        return OPERATIONS_NOT_ASKED
    return context.authorized_operations(ResourceType.GROUP, group_id)


def _describe_group(broker: Broker, group_id: str, context: RequestContext) -> dict[str, Any]:
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


async def list_groups(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ListGroups (key 16), versions 0–5: consumer groups and share groups with their states and types.

    As in Apache Kafka, the filters by state (version 4) and type (version 5) ignore case.
    """
    states = _names(getattr(request, "states_filter", ()))
    types = _names(getattr(request, "types_filter", ()))
    found = [
        *((group.id, group.protocol_type or "", group.state.value, CLASSIC) for group in broker.groups),
        *((group.id, SHARE, group.state, SHARE) for group in broker.shares.groups()),
    ]
    sees_all = context.allows(ResourceType.CLUSTER)
    groups = [
        {"group_id": group_id, "protocol_type": protocol, "group_state": state, "group_type": kind}
        async for group_id, protocol, state, kind in context.time_slice.over(sorted(found))
        if _passes(state, states)
        and _passes(kind, types)
        and (sees_all or context.allows(ResourceType.GROUP, group_id))
    ]
    return {"error_code": ErrorCode.none, "groups": groups}


def _names(wanted: Iterable[str]) -> set[str]:
    return {name.strip().lower() for name in wanted}


def _passes(value: str, names: set[str]) -> bool:
    return not names or value.lower() in names


async def delete_groups(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DeleteGroups (key 42), versions 0–2: deletes groups without members, and their offsets.

    As in Apache Kafka, a group with members gets NON_EMPTY_GROUP, and an unknown group GROUP_ID_NOT_FOUND.
    """
    group_ids = list(dict.fromkeys(request.groups_names))
    try:
        results = [
            await context.time_slice.run(_delete_steps(broker, group_id, context)) for group_id in group_ids
        ]
        await broker.offsets.durable()
    except StorageError:
        results = [ErrorCode.coordinator_not_available] * len(group_ids)
    return {
        "results": [
            {"group_id": group_id, "error_code": result}
            for group_id, result in zip(group_ids, results, strict=True)
        ]
    }


def _delete_steps(broker: Broker, group_id: str, context: RequestContext) -> Generator[None, None, ErrorCode]:
    yield
    denial = context.denial((ResourceType.GROUP, group_id))
    if denial is not None:
        return denial
    coordinator = broker.shares if group_id in broker.shares else broker.groups
    return (yield from coordinator.delete_steps(group_id))
