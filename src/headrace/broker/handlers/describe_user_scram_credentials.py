"""DescribeUserScramCredentials (key 50), version 0: the users, with mechanisms and iterations.

RESOURCE_NOT_FOUND for a user who is asked for and does not exist, DUPLICATE_RESOURCE for one who is asked for
twice. Keys and salts are never shown. As in Apache Kafka.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.security.scram import ScramCredential
    from headrace.protocol.scram import ScramMechanism

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The users that are asked for, or all."""
    if not context.allows(ResourceType.CLUSTER):
        denied = ErrorCode.cluster_authorization_failed
        return {"error_code": denied, "error_message": NOT_AUTHORIZED, "results": []}
    store = broker.security.store
    times = Counter([user.name for user in request.users] if request.users else store.users)
    results = [
        _describe(name, store.credentials(name), count)
        async for name, count in context.time_slice.over(times.items())
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "results": results}


def _describe(name: str, known: Mapping[ScramMechanism, ScramCredential], count: int) -> Mapping[str, Any]:
    code, message = ErrorCode.none, None
    if count > 1:
        code, message = ErrorCode.duplicate_resource, f"the request names user {name!r} {count} times"
    elif not known:
        code, message = ErrorCode.resource_not_found, f"there is no user {name!r}"
    infos = [
        {"mechanism": mechanism.number, "iterations": credential.iterations}
        for mechanism, credential in known.items()
    ]
    return {
        "user": name,
        "error_code": code,
        "error_message": message,
        "credential_infos": infos if code is ErrorCode.none else [],
    }
