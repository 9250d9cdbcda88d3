"""DescribeAcls (key 29), versions 1–3: the ACLs that a filter finds, by resource.

SECURITY_DISABLED on a broker without authentication, where ACLs are not in force. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import NOT_AUTHORIZED
from headrace.broker.security.acls import (
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.security.acls import Acl

VERSIONS: Final = (1, 3)
STEP_ACLS: Final = 500
DISABLED: Final = "ACLs are not in force: no listener of this broker authenticates its clients"


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
