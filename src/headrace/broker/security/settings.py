"""The security settings of a broker, checked when they are built."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.listeners import InvalidSetting
from headrace.broker.security.sasl import OAUTHBEARER, PLAIN, SCRAM, USER

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.listeners import Listener

MECHANISMS: Final = (*SCRAM, PLAIN, OAUTHBEARER)


class ClientAuth(enum.Enum):
    """Whether clients of SSL listeners present certificates: Kafka's `ssl.client.auth`."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """How the tokens of OAUTHBEARER are checked."""

    jwks: str
    """The public keys of the identity provider: a file, or an https URL."""
    audience: str
    """For whom tokens must be meant: Kafka's `sasl.oauthbearer.expected.audience`."""
    issuer: str | None = None
    """Who must have issued them, if given: `sasl.oauthbearer.expected.issuer`."""
    user_claim: str = "sub"
    """The claim that is the name of the user: `sasl.oauthbearer.sub.claim.name`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """How the broker knows its clients."""

    sasl_mechanisms: tuple[str, ...] = SCRAM
    """`sasl.enabled.mechanisms`; PLAIN and OAUTHBEARER are offered only with TLS or on loopback."""
    oauth: OAuthSettings | None = None
    """How tokens are checked, for OAUTHBEARER."""
    session_lifetime_ms: int = 0
    """`connections.max.reauth.ms`: after this time clients must authenticate again; 0 for never."""
    failed_delay_ms: int = 100
    """`connection.failed.authentication.delay.ms`: how long the response to a failed one waits."""
    authentication_timeout_ms: int = 30_000
    """How long a client may take from its connect until it is authenticated."""
    max_unauthenticated: int = 1_000
    """Connections that are being authenticated; one more closes the oldest of them."""
    super_users: frozenset[str] = frozenset()
    """`super.users`: principals that may do everything, besides those made with `headrace broker init`."""
    certificate: Path | None = None
    """The certificate chain of the broker, as a PEM file."""
    private_key: Path | None = None
    """The private key, as a PEM file; in the file of the certificate by default."""
    private_key_password: Path | None = None
    """The file whose first line is the password of the private key, if that is encrypted."""
    client_ca: Path | None = None
    """The authorities that sign the certificates of clients, as a PEM file."""
    client_auth: ClientAuth = ClientAuth.NONE
    principal_mapping_rules: str = "DEFAULT"
    """`ssl.principal.mapping.rules`: from the name in a certificate to a user."""

    def __post_init__(self) -> None:
        for name in self.sasl_mechanisms:
            if name not in MECHANISMS:
                raise InvalidSetting(f"SASL mechanism {name!r} is unknown: use {', '.join(MECHANISMS)}")
        if OAUTHBEARER in self.sasl_mechanisms and self.oauth is None:
            raise InvalidSetting(
                "OAUTHBEARER needs the keys of the identity provider and the audience of its tokens: name "
                "them (--oauth-jwks FILE_OR_URL, --oauth-audience NAME)"
            )
        for principal in self.super_users:
            if not principal.removeprefix(USER) or not principal.startswith(USER):
                raise InvalidSetting(f"super user {principal!r} is not a principal: write User:NAME")
        if self.client_auth is not ClientAuth.NONE and self.client_ca is None:
            raise InvalidSetting(
                f"client certificates are {self.client_auth.value} but cannot be checked: name the "
                "authorities that sign them (--tls-client-ca FILE)"
            )

    def authenticates(self, listener: Listener) -> bool:
        """Whether every client of the listener proves who it is."""
        return listener.protocol.has_sasl or (
            listener.protocol.has_tls and self.client_auth is ClientAuth.REQUIRED
        )

    def check(self, listener: Listener) -> None:
        """Pass when the broker may listen there."""
        if not listener.is_loopback and not self.authenticates(listener):
            raise InvalidSetting(
                f"the broker does not listen on {listener.host} without authentication, because everybody "
                "who reaches the address could read and write everything: use SASL_SSL://HOST:PORT with "
                "`headrace broker init` and --tls-certificate, or SSL://HOST:PORT with "
                "--tls-client-auth required, or listen on 127.0.0.1"
            )
        if listener.protocol.has_tls and self.certificate is None:
            raise InvalidSetting(
                f"{listener} needs a certificate: name one (--tls-certificate FILE, --tls-key FILE)"
            )
        if listener.host in ("0.0.0.0", "::") and listener.advertised is None:  # noqa: S104  it is refused
            raise InvalidSetting(
                f"{listener} is every address of this machine, and clients must be told one: name it "
                f"(--advertise {listener.protocol.value}://NAME:{listener.port})"
            )
