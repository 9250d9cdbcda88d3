"""The options of a gateway, and where it may listen."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_LISTENER: Final = "127.0.0.1:8080"
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """The options of a gateway."""

    broker: str
    """The cluster, with its security profile: `production://kafka-1:9094`."""
    host: str = "127.0.0.1"
    port: int = 0
    """0 for a free port."""
    authentication: bool = False
    """Whether every request must have credentials, with which the gateway logs in to the broker."""
    certificate: Path | None = None
    """The certificate chain of the gateway, as PEM."""
    private_key: Path | None = None
    client_ca: Path | None = None
    """Authorities that sign certificates of clients: connections without such a certificate are refused."""
    origins: tuple[str, ...] = ()
    """Origins whose web pages may use the gateway (CORS); `*` allows all."""
    hosts: tuple[str, ...] = ()
    """Names that the Host header may have besides those of this machine."""
    name: str = ""
    """The name of this gateway in transactional ids; its address if empty."""
    read_only: bool = False
    """Whether requests that change something are refused."""
    max_body_bytes: int = 8 << 20
    max_in_flight_bytes: int = 256 << 20
    """Bodies of all requests that are being read or stored; more are answered with 429."""
    max_streams: int = 200
    """Event streams and WebSockets: each has a thread that waits for the broker."""
    max_connections: int = 10_000
    head_timeout_s: float = 10.0
    """How long a client may take to send the head of a request."""
    body_timeout_s: float = 30.0
    """How long a client may take to send the body of a request."""
    send_timeout_s: float = 30.0
    """How long a client may not read before it is disconnected."""
    produce_timeout_s: float = 10.0
    """How long a record may wait for the broker."""

    def __post_init__(self) -> None:
        if is_loopback(self.host) or (self.authentication and self.certificate is not None):
            return
        raise Misuse(
            f"{self.host} can be reached by other machines: add --authentication, --tls-certificate and "
            "--tls-key, so that requests are encrypted and authenticated by the users of the broker."
        )

    @property
    def allowed_hosts(self) -> frozenset[str] | None:
        """The names that the Host header may have; None for all.

        On a loopback address only local names are accepted, so that no web page can use the gateway by DNS
        rebinding. Where all requests are authenticated by a secret, any name is accepted.
        """
        if not is_loopback(self.host) and not self.hosts:
            return None
        return LOCAL_HOSTS | frozenset(host.lower() for host in self.hosts)


def is_loopback(host: str) -> bool:
    """Whether the address is reachable only from this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_listener(text: str, option: str = "--listen") -> tuple[str, int]:
    """The host and port of `[HOST:]PORT`.

    >>> read_listener("8080"), read_listener("[::1]:0")
    (('127.0.0.1', 8080), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise Misuse(f"{option} {text!r} is not [HOST:]PORT, for example {option} 8080.")
    return host.strip("[]") or "127.0.0.1", int(port)
