"""Bootstrap addresses of a cluster, and the configuration of librdkafka's clients.

An address is `host:port`, or a list of them, with an optional security profile. The profile is written as
Kafka writes the name of a listener, once before the first address. The text is used wherever an address is:
in arguments, in Spark's options and in other processes. It has the name of the profile and none of its
secrets: `headrace.client.security` resolves the name in the process that connects.

Every client of confluent-kafka in Headrace is created with `client_config`:

    producer = Producer(client_config("production://kafka-1:9094", {"linger.ms": 5}))

Apart from `bootstrap.servers` it holds what the security profile of the cluster says. The configuration has
secrets in it: pass it to a client, and do not keep, print or send it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.security import Security


DEFAULT_PORT: Final = 9092

SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)
"""librdkafka would log to standard error; relevant errors are raised."""
OWN_OPTIONS: Final = ("sasl.oauthbearer.", "https.")
"""Options that librdkafka does not get: its tokens come from `headrace.client.authentication`."""


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


def client_config(bootstrap: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The configuration of a client of the cluster that `bootstrap` names, with its security profile."""
    cluster = Bootstrap.of(bootstrap)
    return {"bootstrap.servers": cluster.servers, **_secured(cluster.profile), **(more or {})}


def _secured(profile: str) -> dict[str, Any]:
    if profile == PLAINTEXT:
        return {}
    from headrace.client.security import resolve

    security = resolve(profile)
    given = {name: value for name, value in security.options.items() if not name.startswith(OWN_OPTIONS)}
    if security.uses_sasl and security.mechanism == "OAUTHBEARER":
        return {**given, "oauth_cb": lambda _: _token(security)}
    return given


def _token(security: Security) -> tuple[str, float, str, dict[str, str]]:
    """A token in the form that confluent-kafka takes."""
    from headrace.client.authentication import extensions, get_token

    token = get_token(security)
    return token.text, token.expires_s, "", extensions(security)


def produce(producer: Any, topic: str, **record: Any) -> None:
    """Pass a record to a producer, and wait while its queue is full."""
    while True:
        try:
            producer.produce(topic, **record)
        except BufferError:
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
