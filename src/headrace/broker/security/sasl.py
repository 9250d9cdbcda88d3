"""SASL: the mechanisms, and the state machine that a connection goes through. No I/O.

    HANDSHAKE --handshake--> EXCHANGE --authenticate--> EXCHANGE | VERIFYING | AUTHENTICATED
    VERIFYING --complete--> AUTHENTICATED
    AUTHENTICATED --handshake--> EXCHANGE (re-authentication, KIP-368)
    any --fault--> FAILED

A step that takes milliseconds (hashing a password) is returned as a `Verification`, which the caller runs in
a thread. A re-authentication must keep the mechanism and the principal.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.security.scram import (
    AuthenticationFailed,
    ScramCredential,
    ScramExchange,
    decoy_credential,
    read_client_first,
)
from headrace.errors import HeadraceError
from headrace.protocol.scram import MECHANISMS, ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SCRAM: Final = MECHANISMS
USER: Final = "User:"
ANONYMOUS: Final = "User:ANONYMOUS"
"""A client that did not prove who it is."""


class UnsupportedMechanism(HeadraceError):
    """A mechanism that this listener does not offer."""


class IllegalSaslState(HeadraceError):
    """A request that does not belong into this state of the exchange."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A message that the client must respond to."""

    token: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authenticated:
    """Who the client is; `token` is the last message to it."""

    principal: str
    token: bytes = b""
    expires_at_ms: int | None = None
    """When what the client proved itself with expires; None for never."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Work that is to be done in a thread: returns the result, or raises `AuthenticationFailed`."""

    run: Callable[[], Authenticated]


Step = Challenge | Authenticated | Verification


class Exchange(Protocol):
    """One exchange of a mechanism."""

    def step(self, token: bytes) -> Step:
        """What follows the client's token; raises `AuthenticationFailed`."""
        ...


class Credentials(Protocol):
    """Where the mechanisms find users."""

    secret: bytes
    """From which the salts of users who do not exist are derived."""

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """What is known of a user's password."""
        ...


class ScramServer:
    """The two steps of SCRAM."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._user = ""
        self._exchange: ScramExchange | None = None

    def step(self, token: bytes) -> Step:
        """The server's first message, then its final one."""
        if self._exchange is not None:
            return Authenticated(principal=USER + self._user, token=self._exchange.finish(token))
        first = read_client_first(token)
        self._user = first.user
        credential = self._credentials.credential(self._mechanism, first.user)
        decoy = decoy_credential(self._mechanism, first.user, self._credentials.secret)
        self._exchange = ScramExchange(self._mechanism, first, credential or decoy)
        return Challenge(token=self._exchange.server_first)


class PlainServer:
    """PLAIN (RFC 4616) against the stored SCRAM credentials; only with TLS or on loopback."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def step(self, token: bytes) -> Step:
        """A check of the password."""
        try:
            authzid, user, password = token.decode().split("\0")
        except ValueError as fault:  # also what is not UTF-8
            raise AuthenticationFailed("the PLAIN message is malformed") from fault
        if not user or not password or authzid not in ("", user):
            raise AuthenticationFailed(
                "the PLAIN message lacks a user or a password, or asks to act as another user"
            )
        return Verification(lambda: self._check(user, password))

    def _check(self, user: str, password: str) -> Authenticated:
        known = [
            (mechanism, credential)
            for mechanism in reversed(ScramMechanism)
            if (credential := self._credentials.credential(mechanism, user)) is not None
        ]
        # A user who does not exist takes as long as one who does.
        decoy = decoy_credential(ScramMechanism.SHA_512, user, self._credentials.secret)
        mechanism, credential = known[0] if known else (ScramMechanism.SHA_512, decoy)
        if not credential.verify(mechanism, password):
            raise AuthenticationFailed(f"wrong password, or no user {user!r}")
        return Authenticated(principal=USER + user)


class SaslState(enum.Enum):
    """The states of a connection."""

    HANDSHAKE = "handshake"
    EXCHANGE = "exchange"
    VERIFYING = "verifying"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


class SaslAuthenticator:
    """The authentication of one connection."""

    def __init__(self, mechanisms: Mapping[str, Callable[[], Exchange]]) -> None:
        self._mechanisms = mechanisms
        self.mechanism = ""
        """The mechanism that the client has chosen."""
        self._exchange: Exchange | None = None
        self.state = SaslState.HANDSHAKE
        self.principal = ""
        """Who the client is, since its first successful authentication."""

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms that the client may choose."""
        return list(self._mechanisms)

    def handshake(self, mechanism: str) -> None:
        """Begin an exchange."""
        if self.state not in (SaslState.HANDSHAKE, SaslState.AUTHENTICATED):
            raise self._fail(IllegalSaslState("a SASL handshake inside an exchange"))
        if mechanism not in self._mechanisms or self.mechanism not in ("", mechanism):
            raise self._fail(UnsupportedMechanism(f"SASL mechanism {mechanism[:80]!r} is not offered"))
        self.mechanism = mechanism
        self._exchange = self._mechanisms[mechanism]()
        self.state = SaslState.EXCHANGE

    def authenticate(self, token: bytes) -> Step:
        """The next step; after a `Verification` the caller calls `complete`."""
        if self.state is not SaslState.EXCHANGE or self._exchange is None:
            raise self._fail(IllegalSaslState("a SASL token outside of an exchange"))
        try:
            step = self._exchange.step(token)
        except AuthenticationFailed as fault:
            raise self._fail(fault) from fault
        if isinstance(step, Authenticated):
            self.complete(step)
        elif isinstance(step, Verification):
            self.state = SaslState.VERIFYING
        return step

    def complete(self, result: Authenticated) -> None:
        """The client has proved who it is."""
        if result.principal == ANONYMOUS:
            raise self._fail(AuthenticationFailed("the name of clients without a name cannot be claimed"))
        if self.principal not in ("", result.principal):
            raise self._fail(AuthenticationFailed(f"{self.principal} re-authenticated as {result.principal}"))
        self.principal = result.principal
        self.state = SaslState.AUTHENTICATED

    def fail(self) -> None:
        """Accept nothing more."""
        self.state = SaslState.FAILED

    def _fail(self, fault: HeadraceError) -> HeadraceError:
        self.fail()
        return fault


def mechanisms_of(
    names: tuple[str, ...],
    credentials: Credentials,
    oauth: Callable[[], Exchange] | None,
    *,
    is_private: bool,
) -> dict[str, Callable[[], Exchange]]:
    """The mechanisms of a listener.

    PLAIN and OAUTHBEARER, which send the secret itself, are offered only with TLS or on loopback.
    """
    servers: dict[str, Callable[[], Exchange]] = {}
    for mechanism in ScramMechanism:
        if mechanism.sasl_name in names:
            servers[mechanism.sasl_name] = _scram(mechanism, credentials)
    if PLAIN in names and is_private:
        servers[PLAIN] = lambda: PlainServer(credentials)
    if OAUTHBEARER in names and is_private and oauth is not None:
        servers[OAUTHBEARER] = oauth
    return servers


def _scram(mechanism: ScramMechanism, credentials: Credentials) -> Callable[[], Exchange]:
    return lambda: ScramServer(mechanism, credentials)
