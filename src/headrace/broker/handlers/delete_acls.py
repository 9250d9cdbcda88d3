"""DeleteAcls (key 31), versions 1–3: remove the ACLs that filters find.

SECURITY_DISABLED on a broker without authentication. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.create_acls import ACLS_AT_ONCE
from headrace.broker.handlers.describe_acls import check_access, find_steps, read_filter
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.security.acls import Acl

VERSIONS: Final = (1, 3)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
