"""TLS and SASL on the connections of the raw client, as their security profile says; OAUTHBEARER tokens.

SASL goes over Kafka's own requests: SaslHandshake names the mechanism, and SaslAuthenticate carries its
messages. A broker may limit how long an authentication is valid (KIP-368, `connections.max.reauth.ms`); the
client then authenticates again on the same connection, before it sends a request near the end of that time.

Tokens come from a token endpoint by OIDC client credentials, or from a Python function. A function has the
form of confluent-kafka's `oauth_cb`: it gets the text of `sasl.oauthbearer.config` and returns the token and
the time at which it expires, in seconds since 1970. Tokens of an endpoint are cached, and used by all
connections of the process until most of their lifetime has passed.
"""

from __future__ import annotations

import importlib
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2 import SaslAuthenticateRequest, SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1 import SaslHandshakeRequest, SaslHandshakeResponse

from headrace.client.errors import AuthenticationFailed, BrokerUnreachable, TokenUnavailable
from headrace.client.security import BadProfile, resolve
from headrace.protocol.scram import MECHANISMS, ScramClient, ScramFailed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Sequence

    from headrace.client.security import Security


TOKEN_TIMEOUT_S: Final = 10.0
TOKEN_USED_PART: Final = 0.8
"""The part of its lifetime for which a token is used: it must still be valid when the broker reads it."""
DEFAULT_TOKEN_LIFETIME_S: Final = 300.0
"""For endpoints whose response has no lifetime of the token."""
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")

SESSION_USED_PART: Final = 0.85
"""The part of a session's lifetime after which the client authenticates again, as other Kafka clients do."""
SEPARATOR: Final = "\x01"
"""Between the fields of OAUTHBEARER's messages (RFC 7628)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthToken:
    """A token and the time at which it expires."""

    text: str = field(repr=False)
    expires_s: float
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedToken:
    token: OAuthToken
    renew_s: float


_cache: dict[tuple[str | None, ...], _CachedToken] = {}
_cache_lock = threading.Lock()


def get_token(security: Security) -> OAuthToken:
    """A valid token for a new connection or a new session of it."""
    callback = security.get("sasl.oauthbearer.callback")
    if callback is not None:
        return _from_callback(security, callback)
    key = tuple(
        security.get(f"sasl.oauthbearer.{name}")
        for name in ("token.endpoint.url", "client.id", "client.secret", "scope")
    )
    with _cache_lock:
        cached = _cache.get(key)
        if cached is None or time.time() >= cached.renew_s:
            token = _from_endpoint(security)
            now_s = time.time()
            cached = _CachedToken(token=token, renew_s=now_s + TOKEN_USED_PART * (token.expires_s - now_s))
            _cache[key] = cached
        return cached.token


def extensions(security: Security) -> dict[str, str]:
    """The SASL extensions that go with the token."""
    text = security.get("sasl.oauthbearer.extensions") or ""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not found for _, found, _ in pairs):
        raise BadProfile(
            f"sasl.oauthbearer.extensions of the security profile {security.profile!r} is {text!r}: "
            "write name=value, separated by commas."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _from_callback(security: Security, name: str) -> OAuthToken:
    function = _load(security, name)
    try:
        text, expires_s, *_ = function(security.get("sasl.oauthbearer.config") or "")
    except Exception as fault:
        raise TokenUnavailable(
            f"{name}, which gets the tokens of the security profile {security.profile!r}, failed: "
            f"{type(fault).__name__}: {security.redact(str(fault))}"
        ) from fault
    return OAuthToken(text=text, expires_s=float(expires_s))


def _load(security: Security, name: str) -> Callable[[str], tuple[Any, ...]]:
    module, found, function = name.partition(":")
    try:
        loaded: Callable[[str], tuple[Any, ...]] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as fault:
        form = "" if found else " Write module:function."
        raise BadProfile(
            f"sasl.oauthbearer.callback of the security profile {security.profile!r} is {name!r}, which "
            f"cannot be imported: {fault}.{form}"
        ) from fault
    return loaded


def _from_endpoint(security: Security) -> OAuthToken:
    url = _checked_url(security)
    answer = _post(security, url)
    try:
        text = str(answer["access_token"])
        lifetime_s = float(answer.get("expires_in", DEFAULT_TOKEN_LIFETIME_S))
    except (KeyError, TypeError, ValueError):
        raise TokenUnavailable(f"the answer of the token endpoint {url} has no access_token") from None
    return OAuthToken(text=text, expires_s=time.time() + lifetime_s)


def _checked_url(security: Security) -> str:
    url = security.options["sasl.oauthbearer.token.endpoint.url"]
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return url
    raise BadProfile(
        f"sasl.oauthbearer.token.endpoint.url of the security profile {security.profile!r} is {url!r}: the "
        "client secret is sent there, so that it must be an https URL (or http on this machine)."
    )


def _post(security: Security, url: str) -> Any:
    # Here and not above: only profiles with a token endpoint need them.
    import ssl

    import urllib3

    form = {"grant_type": "client_credentials", "scope": security.get("sasl.oauthbearer.scope")}
    client = "{}:{}".format(
        security.options["sasl.oauthbearer.client.id"], security.options["sasl.oauthbearer.client.secret"]
    )
    headers = urllib3.make_headers(basic_auth=client) | {"Content-Type": "application/x-www-form-urlencoded"}
    context = ssl.create_default_context(cafile=security.get("https.ca.location"))
    try:
        with urllib3.PoolManager(ssl_context=context, timeout=TOKEN_TIMEOUT_S, retries=False) as pool:
            body = urlencode({name: value for name, value in form.items() if value})
            response = pool.request("POST", url, body=body, headers=headers, redirect=False)
    except urllib3.exceptions.HTTPError as fault:
        raise TokenUnavailable(f"the token endpoint {url} does not answer: {fault}") from fault
    return _read_answer(url, response.status, response.data)


def _read_answer(url: str, status: int, data: bytes) -> Any:
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    if status == 200:
        return answer
    reason = answer.get("error") if isinstance(answer, dict) else None
    raise TokenUnavailable(
        f"the token endpoint {url} refused the client: {reason or 'no reason given'} (HTTP {status}). Check "
        "sasl.oauthbearer.client.id, the client secret and the scope."
    )


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
        raise BrokerUnreachable(f"no broker responds at {name}: {fault}") from fault


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
            self._renew_at = begin + lifetime_s * SESSION_USED_PART

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
