"""ACLs: DescribeAcls, CreateAcls and DeleteAcls.

DescribeAcls (key 29), versions 1–3: the ACLs that match a filter, by resource.

CreateAcls (key 30), versions 1–3: adds ACLs; one that exists stays as it is. INVALID_REQUEST for an entry
that is not valid: a filter instead of a value, an empty name, a cluster with another name than
`kafka-cluster`, a principal without a type.

DeleteAcls (key 31), versions 1–3: removes the ACLs that match filters.

SECURITY_DISABLED on a broker without authentication, where ACLs are not in force. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.broker.security.store import MAX_ACLS
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext


DESCRIBE_VERSIONS: Final = (1, 3)
STEP_ACLS: Final = 500
DISABLED: Final = "ACLs are not in force: no listener of this broker authenticates its clients"


async def describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The ACLs that the filter finds."""
    refusal = check_access(broker, context)
    wanted = read_filter(request)
    if refusal is None and wanted is None:
        refusal = (ErrorCode.invalid_request, "the filter has a value that is unknown")
    if refusal is not None or wanted is None:
        code, message = refusal or (ErrorCode.none, None)
        return {"error_code": code, "error_message": message, "resources": []}
    found = await context.time_slice.run(find_steps(broker, wanted))
    return {"error_code": ErrorCode.none, "error_message": None, "resources": _by_resource(found)}


def find_steps(broker: Broker, wanted: AclFilter) -> Generator[None, None, list[Acl]]:
    """The entries that a filter finds; yields between steps."""
    found = []
    for number, acl in enumerate(tuple(broker.security.store.acls), 1):
        if wanted.matches(acl):
            found.append(acl)
        if not number % STEP_ACLS:
            yield
    return found


def check_access(broker: Broker, context: RequestContext) -> tuple[ErrorCode, str] | None:
    """Why the client may not describe or alter ACLs; None if it may."""
    if not broker.config.has_authentication:
        return ErrorCode.security_disabled, DISABLED
    if not context.allows(ResourceType.CLUSTER):
        return ErrorCode.cluster_authorization_failed, NOT_AUTHORIZED
    return None


def read_filter(requested: Any) -> AclFilter | None:
    """The filter of a request; None if it has a value that is unknown."""
    try:
        found = AclFilter(
            ResourceType(requested.resource_type_filter),
            requested.resource_name_filter,
            PatternType(requested.pattern_type_filter),
            requested.principal_filter,
            requested.host_filter,
            Operation(requested.operation),
            Permission(requested.permission_type),
        )
    except ValueError:
        return None
    kinds = (found.resource_type, found.pattern_type, found.operation, found.permission)
    return None if 0 in kinds else found


def _by_resource(acls: list[Acl]) -> list[Mapping[str, Any]]:
    resources: dict[tuple[ResourceType, str, PatternType], list[Mapping[str, Any]]] = {}
    for acl in acls:
        entry = {
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }
        resources.setdefault((acl.resource_type, acl.name, acl.pattern_type), []).append(entry)
    return [
        {
            "resource_type": resource_type,
            "resource_name": name,
            "pattern_type": pattern_type,
            "acls": entries,
        }
        for (resource_type, name, pattern_type), entries in resources.items()
    ]


CREATE_VERSIONS: Final = (1, 3)
ACLS_AT_ONCE: Final = 100
"""ACLs that are stored in one step."""
MAX_TEXT_BYTES: Final = 4096


async def create(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """What became of each entry."""
    refusal = check_access(broker, context)
    if refusal is not None:
        return {"results": [_answer(*refusal) for _ in request.creations]}
    read = [_read(creation) async for creation in context.time_slice.over(request.creations)]
    acls = [acl for acl in read if isinstance(acl, Acl)]
    failure = await context.time_slice.run(_add_steps(broker, acls))
    await broker.security.store.durable()
    return {
        "results": [
            (_answer(*failure) if failure else _answer(ErrorCode.none, None))
            if isinstance(acl, Acl)
            else _answer(ErrorCode.invalid_request, acl)
            for acl in read
        ]
    }


def _add_steps(broker: Broker, acls: list[Acl]) -> Generator[None, None, tuple[int, str] | None]:
    if len(broker.security.store.acls) + len(acls) > MAX_ACLS:
        return ErrorCode.policy_violation, f"a broker has at most {MAX_ACLS} ACLs"
    try:
        for first in range(0, len(acls), ACLS_AT_ONCE):
            broker.security.add_acls(acls[first : first + ACLS_AT_ONCE])
            yield
    except StorageError as fault:
        return error_code(fault), str(fault)
    return None


def _answer(code: int, message: str | None) -> Mapping[str, Any]:
    return {"error_code": code, "error_message": message}


def _read(requested: Any) -> Acl | str:
    """The entry, or what is wrong with it."""
    try:
        acl = Acl(
            ResourceType(requested.resource_type),
            requested.resource_name,
            PatternType(requested.resource_pattern_type),
            requested.principal,
            requested.host,
            Operation(requested.operation),
            Permission(requested.permission_type),
        )
    except ValueError as fault:
        return str(fault)
    if acl.resource_type <= ResourceType.ANY or acl.operation <= Operation.ANY:
        return "the resource type and the operation must be one, not any"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "the pattern type must be literal or prefixed"
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        return "the permission type must be allow or deny"
    return _check_texts(acl) or acl


def _check_texts(acl: Acl) -> str | None:
    kind, _, name = acl.principal.partition(":")
    if not kind or not name:
        return "a principal has a type and a name, for example User:alice"
    if not acl.name or not acl.host:
        return "the name of the resource and the host must not be empty"
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return f"the name of the cluster is {CLUSTER_NAME}"
    if max(len(text.encode()) for text in (acl.name, acl.principal, acl.host)) > MAX_TEXT_BYTES:
        return f"a name has up to {MAX_TEXT_BYTES} bytes"
    return None


DELETE_VERSIONS: Final = (1, 3)


async def delete(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The entries that each filter has removed."""
    refusal = check_access(broker, context)
    results = [
        await context.time_slice.run(_delete_steps(broker, requested))
        if refusal is None
        else _result(*refusal)
        async for requested in context.time_slice.over(request.filters)
    ]
    await broker.security.store.durable()
    return {"filter_results": results}


def _delete_steps(broker: Broker, requested: Any) -> Generator[None, None, Mapping[str, Any]]:
    wanted = read_filter(requested)
    if wanted is None:
        return _result(ErrorCode.invalid_request, "the filter has a value that is unknown")
    found = yield from find_steps(broker, wanted)
    try:
        for first in range(0, len(found), ACLS_AT_ONCE):
            broker.security.remove_acls(found[first : first + ACLS_AT_ONCE])
            yield
    except StorageError as fault:
        return _result(error_code(fault), str(fault))
    return _result(ErrorCode.none, None, found)


def _result(code: int, message: str | None, removed: list[Acl] | None = None) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "matching_acls": [_removed(acl) for acl in removed or ()],
    }


def _removed(acl: Acl) -> Mapping[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern_type,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
