"""What altering and deleting the offsets of a share group have in common: only a group at rest is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.broker.record_fields import fits_string

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

    Change = Callable[[Broker, str, Any], Generator[None, None, Mapping[str, Any]]]


async def change_offsets(
    broker: Broker, request: Any, context: RequestContext, change: Change, *, creates: bool = False
) -> Mapping[str, Any]:
    """What became of each topic that was asked for, or why the group may not be changed.

    `change` yields wherever other requests may be served; a member may join the group meanwhile.
    """
    error = broker.shares.check_empty(request.group_id)
    if creates and error is ErrorCode.group_id_not_found and _may_create(broker, request.group_id):
        error = broker.shares.create(request.group_id)
    responses = []
    if error is ErrorCode.none:
        responses = [
            await context.time_slice.run(change(broker, request.group_id, asked)) for asked in request.topics
        ]
        await broker.shares.durable()
    return {
        "error_code": error,
        "error_message": _reason(error, request.group_id),
        "responses": responses,
    }


def _may_create(broker: Broker, group_id: str) -> bool:
    """Whether a share group may have that name: it is none of another kind of group."""
    return bool(group_id) and fits_string(group_id) and broker.groups.describe(group_id) is None


def _reason(error: ErrorCode, group_id: str) -> str | None:
    if error is ErrorCode.group_id_not_found:
        return f"Group {group_id} not found."
    return "the group has members: stop them first" if error is ErrorCode.non_empty_group else None
