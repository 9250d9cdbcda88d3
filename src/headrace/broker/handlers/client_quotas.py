"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas.

DescribeClientQuotas (key 48), versions 0–1: the quotas of the entities that a filter finds.

A filter has a component for each kind of entity: a name, the default, or any that is given. Without `strict`
an entity may have further kinds. INVALID_REQUEST for a filter that makes no sense, UNSUPPORTED_VERSION for an
unknown kind. As in Apache Kafka; quotas of IP addresses are never found, because there are none.

AlterClientQuotas (key 49), versions 0–1: set and remove quotas of users, client ids, and both together.

INVALID_REQUEST for an unknown kind or key and for a value that is not above 0, or not whole for bytes, as in
Apache Kafka. Quotas of IP addresses (`connection_creation_rate`) and `controller_mutation_rate` are refused:
`--max-connections-per-ip` and `--max-partitions` are the limits there. A quota applies immediately, also to
open connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.quotas import CLIENT_ID, DEFAULT, KEYS, USER, WHOLE_NUMBERS, Entity
from headrace.broker.security.store import MAX_QUOTAS, MAX_USER_BYTES
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

DESCRIBE_VERSIONS: Final = (0, 1)
IP: Final = "ip"
EXACT, IS_DEFAULT, ANY = 0, 1, 2

Refusal = tuple[ErrorCode, str]


async def describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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


ALTER_VERSIONS: Final = (0, 1)

Result = tuple[int, str | None]


class _Refused(Exception):
    """An entry that cannot be applied, and why."""


async def alter(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Change the quotas of each entity; returns an error code for each."""
    is_allowed = context.allows(ResourceType.CLUSTER)
    results = []
    async for entry in context.time_slice.over(request.entries):
        if not is_allowed:
            result: Result = (int(ErrorCode.cluster_authorization_failed), NOT_AUTHORIZED)
        else:
            result = _alter(broker, entry, only_validate=request.validate_only)
        entity = [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity]
        results.append({"error_code": result[0], "error_message": result[1], "entity": entity})
    await broker.security.store.durable()
    return {"entries": results}


def _alter(broker: Broker, entry: Any, *, only_validate: bool) -> Result:
    store = broker.security.store
    try:
        entity = _entity(entry.entity)
        values = _changed(store.quotas.get(entity, {}), entry.ops)
        if entity not in store.quotas and len(store.quotas) >= MAX_QUOTAS:
            raise _Refused(f"a broker has quotas for at most {MAX_QUOTAS} entities")
        if not only_validate:
            store.alter_quotas(entity, values)
            broker.quotas_changed()
    except _Refused as fault:
        return int(ErrorCode.invalid_request), str(fault)
    except StorageError as fault:
        return error_code(fault), str(fault)
    return int(ErrorCode.none), None


def _entity(parts: Any) -> Entity:
    names: dict[str, str] = {}
    for part in parts:
        kind, name = part.entity_type, part.entity_name
        if kind == IP:
            raise _Refused("quotas of addresses are not supported: use --max-connections-per-ip")
        if kind not in (USER, CLIENT_ID):
            raise _Refused(f"entities of kind {kind!r} have no quotas: use {USER} or {CLIENT_ID}")
        if kind in names:
            raise _Refused(f"the entity names {kind} twice")
        if name == "" or (name is not None and len(name.encode()) > MAX_USER_BYTES):
            raise _Refused(f"a {kind} has a name of 1 to {MAX_USER_BYTES} bytes")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise _Refused("the entity is empty")
    return Entity(names.get(USER), names.get(CLIENT_ID))


def _changed(before: Mapping[str, float], operations: Any) -> dict[str, float]:
    values = dict(before)
    for operation in operations:
        if operation.key not in KEYS:
            raise _Refused(f"{operation.key!r} is not a quota: use {', '.join(KEYS)}")
        if operation.remove:
            values.pop(operation.key, None)
            continue
        if not 0 < operation.value < float("inf"):
            raise _Refused(f"{operation.key} is {operation.value}: it must be above 0")
        if operation.key in WHOLE_NUMBERS and not operation.value.is_integer():
            raise _Refused(f"{operation.key} is {operation.value}: it must be a whole number")
        values[operation.key] = operation.value
    return values
