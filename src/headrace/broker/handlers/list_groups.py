"""ListGroups (key 16), versions 0–5: consumer groups and share groups with their states and types.

As in Apache Kafka, the filters by state (version 4) and type (version 5) ignore case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)

CLASSIC: Final = "classic"
SHARE: Final = "share"


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the groups that match the filters, sorted by id."""
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
