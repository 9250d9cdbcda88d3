"""Users with passwords: DescribeUserScramCredentials and AlterUserScramCredentials.

DescribeUserScramCredentials (key 50), version 0: the users, with mechanisms and iterations.
RESOURCE_NOT_FOUND for a requested user that does not exist, DUPLICATE_RESOURCE for one that the request names
twice. Keys and salts are never returned. As in Apache Kafka.

AlterUserScramCredentials (key 51), version 0: creates, changes and deletes users. UNACCEPTABLE_CREDENTIAL for
a bad name, salt or number of iterations (4,096 to 16,384), UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND for
a credential to delete that does not exist, DUPLICATE_RESOURCE for a user that the request names twice, also
with two mechanisms. As in Apache Kafka. Connections of a user stay open until they end or must authenticate
again.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.scram import MAX_ITERATIONS, ScramCredential
from headrace.broker.security.store import MAX_USER_BYTES, MAX_USERS
from headrace.protocol.scram import MIN_ITERATIONS, ScramMechanism
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.security.store import SecurityStore


DESCRIBE_VERSIONS: Final = (0, 0)


async def describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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


ALTER_VERSIONS: Final = (0, 0)
MAX_SALT_BYTES: Final = 256

Refusal = tuple[ErrorCode, str]


async def alter(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Change the credentials of each user; returns an error code for each."""
    changes = (*request.deletions, *request.upsertions)
    times = Counter(change.name for change in changes)
    unique = {change.name: change for change in changes}
    if not context.allows(ResourceType.CLUSTER):
        denied = ErrorCode.cluster_authorization_failed
        return {"results": [_result(user, denied, NOT_AUTHORIZED) for user in unique]}
    results = [
        _result(user, *_alter(broker, change, times[user]))
        async for user, change in context.time_slice.over(unique.items())
    ]
    await broker.security.store.durable()
    return {"results": results}


def _result(user: str, code: int, message: str | None) -> Mapping[str, Any]:
    return {"user": user, "error_code": code, "error_message": message}


def _alter(broker: Broker, change: Any, times: int) -> tuple[int, str | None]:
    store = broker.security.store
    if times > 1:
        return ErrorCode.duplicate_resource, "a request can alter a user once"
    mechanism = _mechanism(change.mechanism)
    if mechanism is None:
        return ErrorCode.unsupported_sasl_mechanism, f"mechanism {change.mechanism} is unknown"
    refusal = _check(store, change, mechanism)
    if refusal is not None:
        return refusal
    try:
        store.alter_credentials({(change.name, mechanism): _credential(mechanism, change)})
    except StorageError as fault:
        return error_code(fault), str(fault)
    return ErrorCode.none, None


def _mechanism(number: int) -> ScramMechanism | None:
    return next((mechanism for mechanism in ScramMechanism if mechanism.number == number), None)


def _credential(mechanism: ScramMechanism, change: Any) -> ScramCredential | None:
    if not hasattr(change, "salted_password"):
        return None
    return ScramCredential.from_salted(mechanism, change.salted_password, change.salt, change.iterations)


def _check(store: SecurityStore, change: Any, mechanism: ScramMechanism) -> Refusal | None:
    user = change.name
    if not user or len(user.encode()) > MAX_USER_BYTES:
        return ErrorCode.unacceptable_credential, f"a user has a name of up to {MAX_USER_BYTES} bytes"
    if hasattr(change, "salted_password"):
        return _check_upsertion(store, change, mechanism)
    if store.credential(mechanism, user) is None:
        return ErrorCode.resource_not_found, f"{user!r} has no credential for {mechanism.sasl_name}"
    return None


def _check_upsertion(store: SecurityStore, change: Any, mechanism: ScramMechanism) -> Refusal | None:
    if not store.credentials(change.name) and store.user_count >= MAX_USERS:
        return ErrorCode.policy_violation, f"a broker has at most {MAX_USERS} users"
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        text = f"{change.iterations} iterations: choose {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        return ErrorCode.unacceptable_credential, text
    if not 0 < len(change.salt) <= MAX_SALT_BYTES:
        return ErrorCode.unacceptable_credential, f"a salt has up to {MAX_SALT_BYTES} bytes"
    if len(change.salted_password) != mechanism.digest_bytes:
        text = f"a salted password of {mechanism.sasl_name} has {mechanism.digest_bytes} bytes"
        return ErrorCode.unacceptable_credential, text
    return None
