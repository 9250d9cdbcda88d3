"""SaslHandshake (key 17), versions 0–1: the client chooses a SASL mechanism.

UNSUPPORTED_SASL_MECHANISM comes with the list of those that the listener offers, after a delay, and ends the
connection; ILLEGAL_SASL_STATE is the answer inside an exchange, and on listeners without SASL. After version
0 the tokens follow without request headers. On an authenticated connection it begins a re-authentication
(KIP-368). As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.sasl import IllegalSaslState, UnsupportedMechanism

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 1)


async def handle(_broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
