"""The options of `format("headrace")`, and the connection that they describe.

Most options have the names of Spark's Kafka source. Spark passes option names in lower case, so lookups
ignore case, and messages spell a name as the documentation does. An unknown name is an error with a
suggestion: a misspelled `maxOffsetPerTrigger` would otherwise be noticed only when the job is overloaded.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Self, TypeVar

from headrace.client.bootstrap import PLAINTEXT, BadAddress, check_profile_name, split_profile, with_profile
from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.cluster import Cluster


T = TypeVar("T")

SPARK: Final = ("path", "checkpointLocation", "queryName", "outputMode")
"""Options that Spark itself adds to those of a source or sink."""

REFUSED_CLIENT_OPTIONS: Final = {
    "kafka.auto.offset.reset": "say where to begin with startingOffsets",
    "kafka.key.deserializer": "keys always arrive as binary: cast them with DataFrame operations",
    "kafka.value.deserializer": "values arrive as binary, or typed with valueFormat and valueSchema",
    "kafka.key.serializer": "make the key column string or binary with DataFrame operations",
    "kafka.value.serializer": "make the value column string or binary with DataFrame operations",
    "kafka.enable.auto.commit": "positions are kept in the checkpoint; name a kafka.group.id to publish them",
    "kafka.interceptor.classes": "interceptors could change records unseen",
    "kafka.transactional.id": "the plain sink writes at least once; jobs of headrace.App write exactly once",
}
"""Client options that conflict with how Spark reads and writes, each with what to do instead."""


class Options:
    """The options of one source or sink, checked against the known names."""

    def __init__(self, given: Mapping[str, str], *, known: Iterable[str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        self._known = {name.lower(): name for name in (*known, *SPARK)}
        for name in self._values:
            self._check(name)

    def text(self, name: str) -> str | None:
        """The option as text, or None."""
        return self._values.get(name.lower())

    def required(self, name: str, hint: str) -> str:
        """The option as text; an error if it is missing or empty."""
        value = (self.text(name) or "").strip()
        if not value:
            raise BadOption(f"the option {name} is missing: {hint}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """The option as true or false."""
        words = {"true": True, "false": False}
        return self.choice(name, words, default="true" if default else "false")

    def number(self, name: str, *, at_least: int = 1) -> int | None:
        """The option as a whole number, or None."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = at_least - 1
        if number < at_least:
            raise BadOption(f"{name} is {value!r}: write a whole number of at least {at_least}")
        return number

    def choice(self, name: str, choices: Mapping[str, T], *, default: str) -> T:
        """The value of the option's word in `choices`."""
        word = (self.text(name) or default).strip().lower()
        if word not in choices:
            raise BadOption(f"{name} is {word!r}: write {' or '.join(choices)}")
        return choices[word]

    def client_options(self) -> dict[str, str]:
        """The options that begin with `kafka.`, without that prefix."""
        return {
            name.removeprefix("kafka."): value
            for name, value in self._values.items()
            if name.startswith("kafka.")
        }

    def _check(self, name: str) -> None:
        if name in REFUSED_CLIENT_OPTIONS:
            raise BadOption(f"the option {name} is not supported: {REFUSED_CLIENT_OPTIONS[name]}")
        if name.startswith("kafka.") or name in self._known:
            return
        close = get_close_matches(name, self._known, n=1, cutoff=0.6)
        hint = f"did you mean {self._known[close[0]]}?" if close else "see docs/spark.md for what there is"
        raise BadOption(f'format("headrace") has no option {name!r}: {hint}')


SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

_DURATION = re.compile(r"(\d+)\s*(ms|s|min|m|h|d)", re.IGNORECASE)


def read_duration_s(option: str, text: str) -> float:
    """The seconds in `text`.

    >>> read_duration_s("maxTriggerDelay", "15m")
    900
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise BadOption(f"{option} is {text!r}: write a number and ms, s, m, h or d, for example 30s")
    return int(match[1]) * SECONDS[match[2].lower()]


BOOTSTRAP: Final = "kafka.bootstrap.servers"
SECURITY_PROFILE: Final = "securityProfile"
"""The option that names a security profile. Spark shows options in plans and event logs, so no option may
hold a secret: each process resolves the name itself."""
DEFAULT_TIMEOUT_MS: Final = 30_000

_clusters: dict[tuple[int, int, ClusterConnection], Cluster] = {}
"""The open clusters of each thread. A Python worker runs many tasks, and connections are kept between them. A
forked worker must not share connections with its parent, so the process id is part of the key. A thread that
reuses the id of one that ended also reuses its clusters, which are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnection:
    """How to connect to a cluster. Plain data that is sent to the tasks, which open their own connections."""

    bootstrap: str
    """The addresses, and before them the name of the security profile."""
    client_id: str = "headrace-spark"
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000

    @classmethod
    def of(cls, options: Options) -> Self:
        """The connection that the options describe."""
        bootstrap = options.required(BOOTSTRAP, 'name the brokers, for example "127.0.0.1:9092"')
        _refuse_security(options.client_options())
        bootstrap = _with_option(bootstrap, options.text(SECURITY_PROFILE))
        timeout_ms = options.number("kafka.request.timeout.ms") or DEFAULT_TIMEOUT_MS
        client_id = options.text("kafka.client.id") or "headrace-spark"
        return cls(bootstrap=bootstrap, client_id=client_id, timeout_s=timeout_ms / 1000)

    def cluster(self) -> Cluster:
        """The cluster of this thread, opened once and kept."""
        from headrace.client.cluster import Cluster

        key = self._key
        if key not in _clusters:
            _clusters[key] = Cluster.of(self.bootstrap, client_id=self.client_id, timeout_s=self.timeout_s)
        return _clusters[key]

    def hang_up(self) -> None:
        """Close this thread's connections to the cluster."""
        cluster = _clusters.pop(self._key, None)
        if cluster is not None:
            cluster.close()

    @property
    def _key(self) -> tuple[int, int, ClusterConnection]:
        return os.getpid(), threading.get_ident(), self


def _refuse_security(client_options: dict[str, str]) -> None:
    protocol = client_options.get("security.protocol", "PLAINTEXT")
    secured = [name for name in client_options if name.startswith(("sasl.", "ssl."))]
    if protocol.upper() != PLAINTEXT or secured:
        name = f"kafka.{secured[0]}" if secured else "kafka.security.protocol"
        raise BadOption(
            f"the option {name} is not accepted, because Spark shows options in plans and logs: put it into "
            "a security profile ([security.NAME] in headrace.toml, or variables of the environment), and "
            f"name the profile by the option {SECURITY_PROFILE}."
        )


def _with_option(bootstrap: str, profile: str | None) -> str:
    """The addresses with the profile of the option before them, if it is set."""
    if profile is None:
        return bootstrap
    try:
        named, addresses = split_profile(bootstrap)
        check_profile_name(profile)
    except BadAddress as fault:
        raise BadOption(str(fault)) from fault
    if named not in (None, profile):
        raise BadOption(
            f"{BOOTSTRAP} names the security profile {named!r}, and {SECURITY_PROFILE} is {profile!r}: "
            "name one of them."
        )
    return with_profile(profile, addresses)
