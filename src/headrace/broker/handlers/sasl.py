"""SASL authentication of a connection: SaslHandshake and SaslAuthenticate.

SaslHandshake (key 17), versions 0–1: the client chooses a SASL mechanism. UNSUPPORTED_SASL_MECHANISM comes
with the list of those that the listener offers, after a delay, and closes the connection; ILLEGAL_SASL_STATE
is the response inside an exchange, and on listeners without SASL. After version 0 the tokens follow without
request headers. On an authenticated connection it begins a re-authentication (KIP-368). As in Apache Kafka.

SaslAuthenticate (key 36), versions 0–2: one token of a SASL exchange, and the server's. A failure is
SASL_AUTHENTICATION_FAILED with Apache Kafka's text, which does not say what was wrong, after a delay
(KIP-306), and closes the connection. From version 1 on the last response has the lifetime of the session
(KIP-368). ILLEGAL_SASL_STATE is the response outside of an exchange, where Apache Kafka closes the
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.sasl import IllegalSaslState, UnsupportedMechanism
from headrace.broker.security.scram import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext


HANDSHAKE_VERSIONS: Final = (0, 1)


async def handshake(_broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Whether the exchange may begin, and the mechanisms that there are."""
    authentication = context.authentication
    if authentication is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": []}
    code = ErrorCode.none
    try:
        authentication.handshake(request.mechanism, takes_tokens=context.version == 0)
    except UnsupportedMechanism as fault:
        code = ErrorCode.unsupported_sasl_mechanism
        await authentication.refuse(fault)
    except IllegalSaslState as fault:
        code = ErrorCode.illegal_sasl_state
        await authentication.refuse(fault)
    return {"error_code": code, "mechanisms": authentication.mechanisms}


AUTHENTICATE_VERSIONS: Final = (0, 2)
REFUSED: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
)


async def authenticate(_broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The server's token, or why the exchange is over."""
    authentication = context.authentication
    if authentication is None:
        return _refusal(ErrorCode.illegal_sasl_state, "This listener has no SASL.")
    try:
        token, lifetime_ms = await authentication.authenticate(request.auth_bytes)
    except AuthenticationFailed as fault:
        await authentication.refuse(fault)
        return _refusal(ErrorCode.sasl_authentication_failed, REFUSED.format(authentication.mechanism))
    except IllegalSaslState as fault:
        await authentication.refuse(fault)
        return _refusal(ErrorCode.illegal_sasl_state, "A SASL handshake comes first.")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "auth_bytes": token,
        "session_lifetime": lifetime_ms,
    }


def _refusal(code: ErrorCode, message: str) -> Mapping[str, Any]:
    return {"error_code": code, "error_message": message, "auth_bytes": b"", "session_lifetime": 0}
