"""SCRAM (RFC 5802, RFC 7677): its mechanisms, and the exchange as a client speaks it, without I/O.

    client = ScramClient("SCRAM-SHA-512", "jobs", password)
    server_first = send(client.first_message())
    server_final = send(client.final_message(server_first))
    client.verify(server_final)

The password is never sent: the client proves that it knows it, and `verify` that the server knows its hash.
User names and passwords are UTF-8 as they are, without SASLprep, as in Apache Kafka.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import secrets
from typing import Final

from headrace.protocol.errors import ProtocolError

MIN_ITERATIONS: Final = 4096
"""A server that asks for fewer may be one that collects proofs to guess passwords from."""
MAX_ITERATIONS: Final = 1_000_000
"""A server that asks for more would only keep the client busy."""
NONCE_BYTES: Final = 24
GS2_HEADER: Final = "n,,"
"""No channel binding, and no other user to act as."""


class ScramFailed(ProtocolError):
    """A message of the server that is malformed, or that does not prove that it knows the password."""


class ScramMechanism(enum.Enum):
    """The SCRAM mechanisms: name, Kafka's number and hash function."""

    SHA_256 = ("SCRAM-SHA-256", 1, "sha256")
    SHA_512 = ("SCRAM-SHA-512", 2, "sha512")

    def __init__(self, sasl_name: str, number: int, hash_name: str) -> None:
        self.sasl_name = sasl_name
        self.number = number
        self.hash_name = hash_name

    @property
    def digest_bytes(self) -> int:
        """The size of the hash."""
        return hashlib.new(self.hash_name).digest_size

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """The password as the keys are derived from it; takes milliseconds."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)

    def sign(self, key: bytes, text: bytes) -> bytes:
        """The HMAC of a text."""
        return hmac.digest(key, text, self.hash_name)

    def client_key(self, salted_password: bytes) -> bytes:
        """The key by which a client proves that it knows the password."""
        return self.sign(salted_password, b"Client Key")

    def server_key(self, salted_password: bytes) -> bytes:
        """The key by which a server proves it."""
        return self.sign(salted_password, b"Server Key")

    def stored_key(self, client_key: bytes) -> bytes:
        """What is stored of a client's key."""
        return hashlib.new(self.hash_name, client_key).digest()

    @classmethod
    def named(cls, name: str) -> ScramMechanism:
        """The mechanism with this name; raises `StopIteration` if there is none."""
        return next(mechanism for mechanism in cls if mechanism.sasl_name == name)


MECHANISMS: Final = tuple(mechanism.sasl_name for mechanism in ScramMechanism)


def combine(first: bytes, second: bytes) -> bytes:
    """The exclusive or of a key or proof and a signature."""
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


class ScramClient:
    """One exchange, from the client's first message to the server's proof."""

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str | None = None) -> None:
        self._mechanism = ScramMechanism.named(mechanism)
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(NONCE_BYTES)
        self._first_bare = f"n={_escape(user)},r={self._nonce}"
        self._server_signature = b""

    def first_message(self) -> bytes:
        """The user's name and a nonce."""
        return (GS2_HEADER + self._first_bare).encode()

    def final_message(self, server_first: bytes) -> bytes:
        """The proof for the server's nonce, salt and iterations."""
        fields = _fields(server_first, "r", "s", "i")
        nonce, salt, iterations = fields["r"], _decode(fields["s"]), _iterations(fields["i"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramFailed("the server's nonce does not continue the client's")
        binding = base64.b64encode(GS2_HEADER.encode()).decode()
        unsigned = f"c={binding},r={nonce}"
        signed = b",".join([self._first_bare.encode(), server_first, unsigned.encode()])
        mechanism = self._mechanism
        salted = mechanism.salted_password(self._password, salt, iterations)
        self._server_signature = mechanism.sign(mechanism.server_key(salted), signed)
        return f"{unsigned},p={base64.b64encode(self._proof(salted, signed)).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's proof; raises `ScramFailed` if it is wrong."""
        if server_final.startswith(b"e="):
            reason = server_final[2:].partition(b",")[0].decode(errors="replace")
            raise ScramFailed(f"the server refused the proof: {reason}")
        signature = _decode(_fields(server_final, "v")["v"])
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramFailed("the server does not prove that it knows the password")

    def _proof(self, salted: bytes, signed: bytes) -> bytes:
        client_key = self._mechanism.client_key(salted)
        return combine(client_key, self._mechanism.sign(self._mechanism.stored_key(client_key), signed))


def _escape(user: str) -> str:
    """A user's name inside a message.

    >>> _escape("a=b,c")
    'a=3Db=2Cc'
    """
    return user.replace("=", "=3D").replace(",", "=2C")


def _fields(message: bytes, *names: str) -> dict[str, str]:
    """The fields of a message, which begin with these names in this order; extensions may follow."""
    try:
        parts = [part.partition("=") for part in message.decode().split(",")]
    except UnicodeDecodeError as fault:
        raise ScramFailed("a message of the server is not UTF-8") from fault
    if [name for name, _, _ in parts[: len(names)]] != list(names):
        raise ScramFailed(f"a message of the server has no {', '.join(names)}")
    return {name: value for name, _, value in parts}


def _iterations(text: str) -> int:
    iterations = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ScramFailed(
            f"the server asks for {text[:20]!r} iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    return iterations


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as fault:
        raise ScramFailed("a message of the server has bad base64") from fault
