"""Who may commit offsets for a group, and who may delete them or the group itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.groups.requests import UNKNOWN_MEMBER
from headrace.broker.groups.standing import CONSUMER_PROTOCOL
from headrace.broker.groups.states import GroupState

if TYPE_CHECKING:
    from headrace.broker.groups.standing import Standing


def check_commit(
    group: Standing, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
) -> ErrorCode:
    """Whether a client may commit: a member of the generation, or anyone while there are no members."""
    if group.state is GroupState.DEAD:
        return ErrorCode.coordinator_not_available
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.none
    if generation >= 0 or member_id != UNKNOWN_MEMBER or instance_id is not None:
        error = group.check_generation(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
    elif not transactional and group.state is not GroupState.EMPTY:
        # Old transactional clients say nothing of their membership; of others it is required.
        return ErrorCode.unknown_member_id
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def check_delete(group: Standing | None) -> ErrorCode:
    """Whether the group may be deleted: it must be there, and have no members."""
    if group is None or group.state is GroupState.DEAD:
        return ErrorCode.group_id_not_found
    return ErrorCode.none if group.state is GroupState.EMPTY else ErrorCode.non_empty_group


def check_offset_delete(group: Standing | None) -> ErrorCode:
    """Whether offsets of the group may be deleted: of consumers it is known what they read, of others not."""
    error = check_delete(group)
    if error is ErrorCode.non_empty_group and group is not None and group.protocol_type == CONSUMER_PROTOCOL:
        return ErrorCode.none
    return error
