"""DeleteGroups (key 42), versions 0–2: deletes groups without members, and their offsets.

As in Apache Kafka, a group with members gets NON_EMPTY_GROUP, and an unknown group GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Delete each group; duplicates in the request are ignored."""
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
