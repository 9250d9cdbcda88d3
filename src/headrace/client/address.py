"""Addresses of brokers: `host:port`, or a comma-separated list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError

DEFAULT_PORT: Final = 9092


class BadAddress(HeadraceError):
    """Text that is not a host and a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One host and its port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_addresses(text: str) -> tuple[Address, ...]:
    """Parse a list of addresses; the default port is 9092.

    >>> [str(address) for address in read_addresses("kafka-1:9094, localhost, [::1]:9093")]
    ['kafka-1:9094', 'localhost:9092', '[::1]:9093']
    """
    return tuple(_read_address(part.strip()) for part in text.split(","))


def _read_address(text: str) -> Address:
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") if rest else port
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or "/" in host or (":" in host and not text.startswith("[")):
        raise BadAddress(f"{text!r} is not an address: write HOST:PORT, for example 127.0.0.1:9092")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadAddress(f"{port!r} in {text!r} is not a port: write a number from 1 to 65535")
    return Address(host=host, port=int(port))
