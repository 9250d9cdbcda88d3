"""DescribeClientQuotas (key 48), versions 0–1: the quotas of the entities that a filter finds.

A filter has a component for each kind of entity: a name, the default, or any that is given. Without `strict`
an entity may have further kinds. INVALID_REQUEST for a filter that makes no sense, UNSUPPORTED_VERSION for an
unknown kind. As in Apache Kafka; quotas of IP addresses are never found, because there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.quotas import CLIENT_ID, DEFAULT, USER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.security.quotas import Entity

VERSIONS: Final = (0, 1)
IP: Final = "ip"
EXACT, IS_DEFAULT, ANY = 0, 1, 2

Refusal = tuple[ErrorCode, str]


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The quotas that the filter finds."""
    refusal: Refusal | None = None
    if not context.allows(ResourceType.CLUSTER):
        refusal = (ErrorCode.cluster_authorization_failed, NOT_AUTHORIZED)
    refusal = refusal or _check(request.components)
    if refusal is not None:
        return {"error_code": refusal[0], "error_message": refusal[1], "entries": None}
    entries = [
        {"entity": entity_fields(entity), "values": [{"key": key, "value": values[key]} for key in values]}
        async for entity, values in context.time_slice.over(list(broker.security.store.quotas.items()))
        if _matches(entity, request)
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "entries": entries}


def entity_fields(entity: Entity) -> list[Mapping[str, str | None]]:
    """An entity as responses have it: the name of the default is null."""
    return [
        {"entity_type": kind, "entity_name": None if name == DEFAULT else name}
        for kind, name in parts(entity).items()
    ]


def parts(entity: Entity) -> dict[str, str]:
    """The kinds and names of an entity."""
    named = {USER: entity.user, CLIENT_ID: entity.client_id}
    return {kind: name for kind, name in named.items() if name is not None}


def _check(components: Any) -> Refusal | None:
    kinds = [component.entity_type for component in components]
    if len(set(kinds)) < len(kinds):
        return ErrorCode.invalid_request, "the filter names a kind of entity twice"
    if IP in kinds and len(kinds) > 1:
        return ErrorCode.invalid_request, "ip cannot be combined with user and client-id"
    return next((refusal for refusal in map(_check_component, components) if refusal is not None), None)


def _check_component(component: Any) -> Refusal | None:
    kind = component.entity_type
    if not kind:
        return ErrorCode.invalid_request, "the kind of an entity is empty"
    if kind not in (USER, CLIENT_ID, IP):
        return ErrorCode.unsupported_version, f"entities of kind {kind!r} have no quotas"
    if component.match_type not in (EXACT, IS_DEFAULT, ANY):
        return ErrorCode.invalid_request, f"match type {component.match_type} is unknown"
    if (component.match is None) == (component.match_type == EXACT):
        return ErrorCode.invalid_request, f"match type {component.match_type} and its name do not fit"
    return None


def _matches(entity: Entity, request: Any) -> bool:
    found = parts(entity)
    if request.strict and len(found) != len(request.components):
        return False
    for component in request.components:
        name = found.get(component.entity_type)
        if name is None:
            return False
        if component.match_type == IS_DEFAULT and name != DEFAULT:
            return False
        if component.match_type == EXACT and name != component.match:
            return False
    return True
