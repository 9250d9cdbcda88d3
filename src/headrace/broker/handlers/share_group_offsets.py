"""What altering and deleting the offsets of a share group have in common: only a group at rest is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.broker import Broker

    Change = Callable[[Broker, str, Any], Mapping[str, Any]]


async def change_offsets(broker: Broker, request: Any, change: Change) -> Mapping[str, Any]:
    """What became of each topic that was asked for, or why the group may not be changed."""
    error = broker.shares.check_idle(request.group_id)
    responses = []
    if error is ErrorCode.none:
        responses = [change(broker, request.group_id, asked) for asked in request.topics]
        await broker.shares.durable()
    return {
        "error_code": error,
        "error_message": _reason(error, request.group_id),
        "responses": responses,
    }


def _reason(error: ErrorCode, group_id: str) -> str | None:
    if error is ErrorCode.group_id_not_found:
        return f"Group {group_id} not found."
    return "the group has members: stop them first" if error is ErrorCode.non_empty_group else None
