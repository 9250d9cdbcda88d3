"""TLS and SASL on the connections of the raw client, as their security profile says.

SASL goes over Kafka's own requests: SaslHandshake names the mechanism, and SaslAuthenticate carries its
messages. A broker may limit how long an authentication is valid (KIP-368, `connections.max.reauth.ms`); the
client then authenticates again on the same connection, before it sends a request near the end of that time.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse

from headrace.client.errors import AuthenticationFailed, BrokerUnreachable
from headrace.client.oauth import extensions, get_token
from headrace.client.security import BadProfile, resolve
from headrace.protocol.scram import MECHANISMS, ScramClient, ScramFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Sequence

    from headrace.client.security import Security

USED_PART: Final = 0.85
"""The part of a session's lifetime after which the client authenticates again, as other Kafka clients do."""
SEPARATOR: Final = "\x01"
"""Between the fields of OAUTHBEARER's messages (RFC 7628)."""


class TlsSocket(ssl.SSLSocket):
    """A TLS socket that sends several buffers with one call, like a plain one."""

    def sendmsg(self, parts: Sequence[Any], *_: Any) -> int:  # type: ignore[override]  # ssl has none
        """Send all buffers; returns how many bytes they are."""
        data = b"".join(parts)
        self.sendall(data)
        return len(data)


def secure_socket(peer: socket.socket, host: str, name: str, profile: str) -> socket.socket:
    """The socket, with TLS if the profile uses it; `name` is the broker's, for messages."""
    try:
        security = resolve(profile)
        return _encrypt(peer, host, name, security) if security.uses_tls else peer
    except BaseException:
        peer.close()
        raise


def _encrypt(peer: socket.socket, host: str, name: str, security: Security) -> socket.socket:
    context = tls_context(security)
    try:
        return context.wrap_socket(peer, server_hostname=host)
    except ssl.SSLCertVerificationError as fault:
        raise AuthenticationFailed(
            f"the certificate of {name} is not accepted: {fault.verify_message}. Check the address and "
            f"ssl.ca.location of the security profile {security.profile!r}."
        ) from fault
    except ssl.SSLEOFError as fault:
        raise BrokerUnreachable(
            f"{name} closed the connection during the TLS handshake: check that this listener uses TLS"
        ) from fault
    except ssl.SSLError as fault:
        raise tls_failure(name, fault) from fault
    except OSError as fault:
        raise BrokerUnreachable(f"no broker answers at {name}: {fault}") from fault


def tls_context(security: Security) -> ssl.SSLContext:
    """What TLS is to verify, and the client's own certificate."""
    try:
        context = ssl.create_default_context(cafile=security.get("ssl.ca.location"))
        context.sslsocket_class = TlsSocket
        context.check_hostname = security.get("ssl.endpoint.identification.algorithm") != "none"
        certificate = security.get("ssl.certificate.location")
        if certificate is not None:
            # Without a function OpenSSL would ask for the password on the terminal.
            password = security.get("ssl.key.password") or ""
            context.load_cert_chain(certificate, security.get("ssl.key.location"), lambda: password)
    except (OSError, ValueError) as fault:
        raise BadProfile(
            f"the certificates of the security profile {security.profile!r} cannot be loaded: {fault}. Check "
            "ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password."
        ) from fault
    return context


def tls_failure(name: str, fault: OSError) -> AuthenticationFailed:
    """The error of a handshake that one of both sides ended."""
    return AuthenticationFailed(
        f"TLS with {name} failed: {fault}. Check that this listener uses TLS, and the certificates of the "
        "security profile."
    )


def open_session(profile: str, name: str, exchange: Callable[[Any, type[Any]], Any]) -> SaslSession | None:
    """The session of a new connection, authenticated; none if the profile does not use SASL."""
    if not resolve(profile).uses_sasl:
        return None
    session = SaslSession(profile, name, exchange)
    session.authenticate()
    return session


class SaslSession:
    """The authentication of one connection, which is repeated before it expires.

    `exchange` sends a request on the connection and returns its response.
    """

    def __init__(self, profile: str, name: str, exchange: Callable[[Any, type[Any]], Any]) -> None:
        self._profile = profile
        self._name = name
        self._exchange = exchange
        self._renew_at: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the connection has to authenticate before its next request."""
        return self._renew_at is not None and time.monotonic() >= self._renew_at

    def authenticate(self) -> None:
        """Authenticate, or authenticate again; raises `AuthenticationFailed` if the broker refuses."""
        security = resolve(self._profile)
        self._renew_at = None
        handshake = self._exchange(SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse)
        if handshake.error_code is not ErrorCode.none:
            raise AuthenticationFailed(
                f"{self._name} does not offer {security.mechanism}, the sasl.mechanism of the security "
                f"profile {security.profile!r}: it offers {', '.join(handshake.mechanisms) or 'none'}."
            )
        begin = time.monotonic()
        lifetime_s = self._converse(security)
        if lifetime_s > 0:
            self._renew_at = begin + lifetime_s * USED_PART

    def _converse(self, security: Security) -> float:
        """Exchange the messages of the mechanism; returns the lifetime of the session, or 0 if unlimited."""
        messages = _messages(security)
        message = next(messages)
        try:
            while True:
                response = self._exchange(
                    SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse
                )
                if response.error_code is not ErrorCode.none:
                    reason = response.error_message or response.error_code.name
                    raise self._refused(security, reason)
                lifetime_s = response.session_lifetime.total_seconds()
                message = messages.send(response.auth_bytes)
        except StopIteration:
            return float(lifetime_s)
        except ScramFailed as fault:
            raise self._refused(security, str(fault)) from fault

    def _refused(self, security: Security, reason: str) -> AuthenticationFailed:
        user = security.get("sasl.username") or security.get("sasl.oauthbearer.client.id")
        who = "" if user is None else f" as {user!r}"
        return AuthenticationFailed(
            f"{self._name} refused the authentication{who} by {security.mechanism}: "
            f"{security.redact(reason).rstrip('.')}. Check the credentials of the security profile "
            f"{security.profile!r}."
        )


def _messages(security: Security) -> Generator[bytes, bytes, None]:
    """The client's messages; each response is sent in, and the end means that the exchange is complete."""
    if security.mechanism == "OAUTHBEARER":
        yield from _bearer_messages(security)
        return
    user, password = security.options["sasl.username"], security.options["sasl.password"]
    if security.mechanism in MECHANISMS:
        client = ScramClient(security.mechanism, user, password)
        server_first = yield client.first_message()
        server_final = yield client.final_message(server_first)
        client.verify(server_final)
    else:
        yield f"\0{user}\0{password}".encode()


def _bearer_messages(security: Security) -> Generator[bytes, bytes, None]:
    more = "".join(f"{name}={value}{SEPARATOR}" for name, value in extensions(security).items())
    bearer = f"auth=Bearer {get_token(security).text}{SEPARATOR}"
    refusal = yield f"n,,{SEPARATOR}{bearer}{more}{SEPARATOR}".encode()
    if refusal:
        # The server explains what is wrong with the token, and ends the exchange after an acknowledgment.
        yield SEPARATOR.encode()
