"""Changes of share group offsets, for AlterShareGroupOffsets and DeleteShareGroupOffsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import NOT_AUTHORIZED
from headrace.broker.record_fields import fits_string
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

    Change = Callable[[Broker, RequestContext, str, Any], Generator[None, None, Mapping[str, Any]]]


async def change_offsets(
    broker: Broker, request: Any, context: RequestContext, change: Change, *, creates: bool = False
) -> Mapping[str, Any]:
    """Apply `change` to each topic of a request, if the group has no members.

    `change` is a generator that yields where other requests may run; a member may join in the meantime.
    """
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"error_code": denial, "error_message": NOT_AUTHORIZED, "responses": []}
    error = broker.shares.check_empty(request.group_id)
    if creates and error is ErrorCode.group_id_not_found and _may_create(broker, request.group_id):
        error = broker.shares.create(request.group_id)
    responses = []
    if error is ErrorCode.none:
        responses = [
            await context.time_slice.run(change(broker, context, request.group_id, requested))
            for requested in request.topics
        ]
        await broker.shares.durable()
    return {
        "error_code": error,
        "error_message": _reason(error, request.group_id),
        "responses": responses,
    }


def _may_create(broker: Broker, group_id: str) -> bool:
    """Whether a share group with this id may be created: the id is valid, and no consumer group has it."""
    return bool(group_id) and fits_string(group_id) and broker.groups.describe(group_id) is None


def _reason(error: ErrorCode, group_id: str) -> str | None:
    if error is ErrorCode.group_id_not_found:
        return f"Group {group_id} not found."
    return "the group has members: stop them first" if error is ErrorCode.non_empty_group else None
