"""The text that names a cluster: addresses, and before them the security profile to connect with.

The profile is written as Kafka writes the name of a listener, once before the first address. The text goes
wherever an address goes: into arguments, into Spark's options and to other processes. It holds the name of
the profile and none of its secrets: `headrace.client.security` resolves the name in the process that
connects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.client.address import BadAddress, read_addresses

if TYPE_CHECKING:
    from headrace.client.address import Address

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
