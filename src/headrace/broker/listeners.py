"""The addresses that a broker listens on, each with its security protocol, under Kafka's names.

| protocol | encrypted | the client proves who it is with |
|---|---|---|
| PLAINTEXT | no | nothing: loopback only |
| SSL | yes | a certificate, if the broker requires one |
| SASL_PLAINTEXT | no | SASL |
| SASL_SSL | yes | SASL |
"""

from __future__ import annotations

import enum
import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterable

_ADDRESS: Final = re.compile(
    r"(?:(?P<protocol>[A-Za-z_]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\[\]]+):(?P<port>\d+)"
)


class InvalidSetting(HeadraceError):
    """A setting that the broker cannot start with."""


class Protocol(enum.Enum):
    """Kafka's security protocols."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (Protocol.SSL, Protocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate with SASL."""
        return self in (Protocol.SASL_PLAINTEXT, Protocol.SASL_SSL)


class Endpoint(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address; `advertised` is the one that clients connect to, if it differs."""

    protocol: Protocol = Protocol.PLAINTEXT
    host: str
    port: int
    advertised: Endpoint | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidSetting(
                f"port {self.port} does not exist: choose one from 0 (any free one) to 65535"
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def is_private(self) -> bool:
        """Whether others on the network cannot listen to its connections."""
        return self.protocol.has_tls or self.is_loopback

    @property
    def address(self) -> str:
        """Host and port."""
        return str(Endpoint(self.host, self.port))

    def endpoint(self, port: int) -> Endpoint:
        """The address that clients connect to, for a listener on `port`."""
        if self.advertised is None:
            return Endpoint(self.host, port)
        return self.advertised._replace(port=self.advertised.port or port)

    def __str__(self) -> str:
        return f"{self.protocol.value}://{self.address}"


def is_loopback(host: str) -> bool:
    """Whether the address is one of this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_listener(text: str) -> Listener:
    """A listener from `HOST:PORT` or `PROTOCOL://HOST:PORT`."""
    protocol, endpoint = _parse(text)
    return Listener(protocol=protocol or Protocol.PLAINTEXT, host=endpoint.host, port=endpoint.port)


def parse_listeners(listen: Iterable[str], advertise: Iterable[str]) -> tuple[Listener, ...]:
    """All listeners, with the addresses that they advertise."""
    listeners = [parse_listener(text) for text in listen]
    for text in advertise:
        protocol, endpoint = _parse(text)
        chosen = [each for each in listeners if protocol in (None, each.protocol)]
        if len(chosen) != 1:
            names = ", ".join(map(str, listeners))
            raise InvalidSetting(
                f"--advertise {text} must name one listener, and there are {len(chosen)} for it: "
                f"write PROTOCOL://HOST:PORT with the protocol of one of {names}"
            )
        listeners[listeners.index(chosen[0])] = replace(chosen[0], advertised=endpoint)
    return tuple(listeners)


def _parse(text: str) -> tuple[Protocol | None, Endpoint]:
    match = _ADDRESS.fullmatch(text)
    names = [protocol.value for protocol in Protocol]
    if match is None or (match["protocol"] or "PLAINTEXT").upper() not in names:
        raise InvalidSetting(
            f"{text!r} is not an address: write HOST:PORT, for example 127.0.0.1:9092, or "
            f"PROTOCOL://HOST:PORT with one of {', '.join(names)}"
        )
    protocol = Protocol(match["protocol"].upper()) if match["protocol"] else None
    return protocol, Endpoint(match["host"].strip("[]"), int(match["port"]))
