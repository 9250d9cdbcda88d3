"""SCRAM (RFC 5802, RFC 7677) as a server speaks it: no I/O, and no password is ever stored.

A credential holds what proves that a client knows the password, and cannot be used to log in. The exchange
has two steps: the client names itself and a nonce, the server answers with salt, iterations and its own
nonce; the client sends a proof over all of that, and the server one of its own.

The proof is bound to the nonce of this exchange, which is checked (CVE-2024-56128), and everything secret is
compared in constant time. A user who does not exist gets a salt all the same, always the same one, so that
the first step does not reveal which users there are.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import HeadraceError
from headrace.protocol.scram import NONCE_BYTES, ScramMechanism, combine

DEFAULT_ITERATIONS: Final = 8192
MAX_ITERATIONS: Final = 16384
"""The bound of Apache Kafka."""
SALT_BYTES: Final = 16

_FIRST = re.compile(
    r"(?P<header>(?P<binding>n|y|p=[^,]*),(?:a=(?P<authzid>[^,]+))?,)"
    r"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,]+)*))"
)
_FINAL = re.compile(
    r"(?P<unsigned>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,]+)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class AuthenticationFailed(HeadraceError):
    """The client could not prove who it is. The text is for the log; the client gets a general one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What the broker knows of one user's password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def from_salted(
        cls, mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
    ) -> ScramCredential:
        """The credential of a password that a client has salted."""
        return cls(
            salt=salt,
            iterations=iterations,
            stored_key=mechanism.stored_key(mechanism.client_key(salted_password)),
            server_key=mechanism.server_key(salted_password),
        )

    @classmethod
    def from_password(
        cls, mechanism: ScramMechanism, password: str, iterations: int = DEFAULT_ITERATIONS
    ) -> ScramCredential:
        """A credential with a new salt."""
        salt = secrets.token_bytes(SALT_BYTES)
        return cls.from_salted(
            mechanism, mechanism.salted_password(password, salt, iterations), salt, iterations
        )

    def verify(self, mechanism: ScramMechanism, password: str) -> bool:
        """Whether this is the password; takes milliseconds."""
        salted = mechanism.salted_password(password, self.salt, self.iterations)
        found = mechanism.stored_key(mechanism.client_key(salted))
        return hmac.compare_digest(found, self.stored_key)


def decoy_credential(mechanism: ScramMechanism, user: str, secret: bytes) -> ScramCredential:
    """A credential for a user who does not exist, the same each time. No password matches it."""
    salt = hmac.digest(secret, b"salt\0" + user.encode(), "sha256")[:SALT_BYTES]
    size = mechanism.digest_bytes
    return ScramCredential(
        salt=salt,
        iterations=DEFAULT_ITERATIONS,
        stored_key=secrets.token_bytes(size),
        server_key=secrets.token_bytes(size),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    """The first message of a client."""

    user: str
    nonce: str
    header: str
    bare: str


def read_client_first(message: bytes) -> ClientFirst:
    """Parse the first message; raises `AuthenticationFailed` if it is not one."""
    match = _FIRST.fullmatch(_text(message))
    if match is None:
        raise AuthenticationFailed("the first SCRAM message is malformed")
    if match["binding"].startswith("p"):
        raise AuthenticationFailed("channel binding is not supported")
    if ",tokenauth=" in match["extensions"]:
        raise AuthenticationFailed("delegation tokens are not supported")
    user = _user_name(match["name"])
    if match["authzid"] is not None and _user_name(match["authzid"]) != user:
        raise AuthenticationFailed(f"{user!r} asked to act as another user")
    return ClientFirst(user=user, nonce=match["nonce"], header=match["header"], bare=match["bare"])


class ScramExchange:
    """One exchange after the client's first message."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        first: ClientFirst,
        credential: ScramCredential,
        *,
        server_nonce: str | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._first = first
        self._credential = credential
        self._nonce = first.nonce + (server_nonce or secrets.token_urlsafe(NONCE_BYTES))

    @property
    def server_first(self) -> bytes:
        """The server's first message: nonce, salt and iterations."""
        salt = base64.b64encode(self._credential.salt).decode()
        return f"r={self._nonce},s={salt},i={self._credential.iterations}".encode()

    def finish(self, client_final: bytes) -> bytes:
        """The server's final message, if the proof is right; otherwise raises `AuthenticationFailed`."""
        match = _FINAL.fullmatch(_text(client_final))
        if match is None:
            raise AuthenticationFailed("the final SCRAM message is malformed")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce is not that of this exchange")
        if _decode(match["binding"]) != self._first.header.encode():
            raise AuthenticationFailed("the channel binding differs from the first message")
        signed = b",".join([self._first.bare.encode(), self.server_first, match["unsigned"].encode()])
        self._check_proof(_decode(match["proof"]), signed)
        return b"v=" + base64.b64encode(self._mechanism.sign(self._credential.server_key, signed))

    def _check_proof(self, proof: bytes, signed: bytes) -> None:
        signature = self._mechanism.sign(self._credential.stored_key, signed)
        if len(proof) != len(signature):
            raise AuthenticationFailed("the proof has the wrong size")
        client_key = combine(proof, signature)
        if not hmac.compare_digest(self._mechanism.stored_key(client_key), self._credential.stored_key):
            raise AuthenticationFailed(f"wrong password, or no user {self._first.user!r}")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as fault:
        raise AuthenticationFailed("a SCRAM message is not UTF-8") from fault


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as fault:
        raise AuthenticationFailed("a SCRAM message has bad base64") from fault


def _user_name(escaped: str) -> str:
    if re.search(r"=(?!2C|3D)", escaped):
        raise AuthenticationFailed("the user name is escaped in the wrong way")
    return escaped.replace("=2C", ",").replace("=3D", "=")
