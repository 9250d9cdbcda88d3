"""CreateAcls (key 30), versions 1–3: add ACLs; one that exists already stays as it is.

INVALID_REQUEST for an entry that could not be meant: a filter instead of a value, an empty name, a cluster
with another name than `kafka-cluster`, a principal without a type. SECURITY_DISABLED on a broker without
authentication. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_acls import check_access
from headrace.broker.security.acls import (
    CLUSTER_NAME,
    Acl,
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

VERSIONS: Final = (1, 3)
ACLS_AT_ONCE: Final = 100
"""ACLs that are stored in one step."""
MAX_TEXT_BYTES: Final = 4096


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
