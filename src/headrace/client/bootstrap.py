"""Bootstrap addresses of a cluster: `host:port`, or a list of them, with an optional security profile.

The profile is written as Kafka writes the name of a listener, once before the first address. The text is used
wherever an address is: in arguments, in Spark's options and in other processes. It has the name of the
profile and none of its secrets: `headrace.client.security` resolves the name in the process that connects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

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


PLAINTEXT: Final = "PLAINTEXT"
"""The profile of connections without TLS and SASL, which always exists."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """The addresses of a cluster and the name of its security profile.

    >>> str(Bootstrap.of("production://kafka-1:9094,kafka-2:9094"))
    'production://kafka-1:9094,kafka-2:9094'
    >>> Bootstrap.of("127.0.0.1").profile
    'PLAINTEXT'
    """

    addresses: tuple[Address, ...]
    profile: str = PLAINTEXT

    @classmethod
    def of(cls, text: str) -> Self:
        """The addresses and the profile in a text; without a profile it is `PLAINTEXT`."""
        profile, addresses = split_profile(text)
        return cls(addresses=read_addresses(addresses), profile=profile or PLAINTEXT)

    @property
    def servers(self) -> str:
        """The addresses, as Kafka's clients take them."""
        return ",".join(map(str, self.addresses))

    def __str__(self) -> str:
        return with_profile(self.profile, self.servers)


def split_profile(text: str) -> tuple[str | None, str]:
    """The profile before the addresses, if the text names one, and the addresses.

    >>> split_profile("production://kafka-1:9094"), split_profile("kafka-1:9094")
    (('production', 'kafka-1:9094'), (None, 'kafka-1:9094'))
    """
    before, found, after = text.strip().partition("://")
    if not found:
        return None, text
    return check_profile_name(before), after


def with_profile(profile: str, addresses: str) -> str:
    """The text of a cluster; `PLAINTEXT` needs no mention."""
    return addresses if profile == PLAINTEXT else f"{profile}://{addresses}"


def check_profile_name(name: str) -> str:
    """The name of a profile, if it can be one."""
    if not _NAME.fullmatch(name):
        raise BadAddress(
            f"{name!r} is not the name of a security profile: use letters, digits, dashes and "
            "underscores, as in production://kafka-1:9094"
        )
    return name
