"""SaslAuthenticate (key 36), versions 0–2: one token of a SASL exchange, and the server's.

A failure is SASL_AUTHENTICATION_FAILED with the text of Apache Kafka, which does not say what was wrong. It
comes after a delay (KIP-306), and ends the connection. From version 1 on the last answer carries the lifetime
of the session (KIP-368). ILLEGAL_SASL_STATE is the answer outside of an exchange, where Apache Kafka closes
the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.sasl import IllegalSaslState
from headrace.broker.security.scram import AuthenticationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)
REFUSED: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
)


async def handle(_broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
