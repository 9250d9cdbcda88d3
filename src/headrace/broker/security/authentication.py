"""SASL at the edge: what one connection may request until it is authenticated, and while its session lasts.

Before authentication only ApiVersions, SaslHandshake and SaslAuthenticate are served, and requests are small.
A failed authentication is answered after a delay (KIP-306), and ends the connection. Where sessions have a
lifetime, a client that does not authenticate again in time loses its connection with its next request
(KIP-368). After version 0 of SaslHandshake the tokens follow without request headers, as in Apache Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.sasl import (
    Authenticated,
    SaslAuthenticator,
    SaslState,
    Verification,
)
from headrace.errors import HeadraceError
from headrace.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.security.sasl import Challenge, Exchange

log = logging.getLogger(__name__)

SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
SASL_AUTHENTICATE: Final = 36
OPEN_APIS: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
"""What a client may request before it is authenticated."""
MAX_REQUEST_BYTES: Final = 60 * 1024
"""The largest request before authentication; it fits the first buffer of a connection."""

_API_KEY = struct.Struct(">h")
_SIZE = struct.Struct(">i")


class ConnectionAuthentication:
    """The authentication of one connection."""

    def __init__(
        self, broker: Broker, connection: Connection, mechanisms: Mapping[str, Callable[[], Exchange]]
    ) -> None:
        self._broker = broker
        self._connection = connection
        self._sasl = SaslAuthenticator(mechanisms)
        self._takes_tokens = False
        """Whether tokens come without request headers (SaslHandshake version 0)."""
        self._session_ends_at_ms: int | None = None

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the client may choose."""
        return self._sasl.mechanisms

    @property
    def mechanism(self) -> str:
        """The mechanism that the client has chosen."""
        return self._sasl.mechanism

    def respond(self, broker: Broker, frame: memoryview, peer: Connection) -> Any:
        """Serve a request if the client may make it now."""
        if self._takes_tokens:
            return self._respond_to_token(bytes(frame))
        (api_key,) = _API_KEY.unpack_from(frame)
        if api_key not in OPEN_APIS:
            self._check_session(api_key)
        return broker.respond(broker, frame, peer)

    def accepts_size(self, size: int) -> bool:
        """Whether a frame may have this size: a token without a header may be tiny."""
        return self._takes_tokens and 0 <= size <= MAX_REQUEST_BYTES

    def _check_session(self, api_key: int) -> None:
        if not self._sasl.principal:
            raise ProtocolError(f"API {api_key} was requested before authentication")
        ends_at_ms = self._session_ends_at_ms
        if ends_at_ms is not None and self._broker.clock.now_ms() > ends_at_ms:
            raise ProtocolError(f"the session of {self._sasl.principal} has expired")

    def handshake(self, mechanism: str, *, takes_tokens: bool) -> None:
        """Begin an exchange; raises `UnsupportedMechanism` or `IllegalSaslState`."""
        self._sasl.handshake(mechanism)
        self._takes_tokens = takes_tokens

    async def authenticate(self, token: bytes) -> tuple[bytes, int]:
        """The token for the client, and the lifetime of its session in milliseconds; 0 for unlimited."""
        step: Challenge | Authenticated | Verification = self._sasl.authenticate(token)
        if isinstance(step, Verification):
            step = await self._verify(step)
        if not isinstance(step, Authenticated):
            return step.token, 0
        lifetime_ms = self._begin_session(step)
        self._connection.authenticated(step.principal, is_limited=self._session_ends_at_ms is not None)
        return step.token, lifetime_ms

    async def _verify(self, verification: Verification) -> Authenticated:
        try:
            result = await self._broker.security.run(verification.run)
        except HeadraceError:
            self._sasl.fail()
            raise
        self._sasl.complete(result)
        return result

    def _begin_session(self, result: Authenticated) -> int:
        now_ms = self._broker.clock.now_ms()
        limit_ms = self._broker.config.security.session_lifetime_ms
        ends = [] if result.expires_at_ms is None else [result.expires_at_ms]
        if limit_ms > 0:
            ends.append(now_ms + limit_ms)
        self._session_ends_at_ms = min(ends) if ends else None
        return max(min(ends) - now_ms, 1) if ends else 0

    async def refuse(self, fault: HeadraceError) -> None:
        """Return when the refusal may be sent; the connection ends after it."""
        log.warning("%s is not authenticated: %s", self._connection.host, fault)
        if self._broker.server is not None:
            self._broker.server.failed_authentications += 1
        self._connection.close_when_sent()
        await asyncio.sleep(self._broker.config.security.failed_delay_ms / 1000)

    async def _respond_to_token(self, token: bytes) -> bytes | None:
        try:
            response, _ = await self.authenticate(token)
        except HeadraceError as fault:
            await self.refuse(fault)
            self._connection.close()
            return None
        if self._sasl.state is SaslState.AUTHENTICATED:
            self._takes_tokens = False
        return _SIZE.pack(len(response)) + response
