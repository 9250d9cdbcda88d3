"""ListGroups (16), versions 0–5: all groups with their states and types.

Filters by state (version 4) and type (version 5) take any case, as in Apache Kafka. Every group here is of
the classic type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)

CLASSIC: Final = "classic"


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:  # noqa: ARG001
    """The groups that pass the filters, by name."""
    states = getattr(request, "states_filter", ())
    types = getattr(request, "types_filter", ())
    groups = [
        {
            "group_id": group.group_id,
            "protocol_type": group.protocol_type,
            "group_state": group.state.value,
            "group_type": CLASSIC,
        }
        for group in broker.groups.list()
        if _passes(group.state.value, states) and _passes(CLASSIC, types)
    ]
    return {"error_code": ErrorCode.none, "groups": groups}


def _passes(value: str, wanted: Iterable[str]) -> bool:
    names = {name.strip().lower() for name in wanted}
    return not names or value.lower() in names
