"""How a source or a sink reaches its brokers: addresses, names and patience, from the `kafka.*` options."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.client.address import BadAddress
from headrace.client.bootstrap import PLAINTEXT, check_profile_name, split_profile, with_profile
from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.spark.options import Options

BOOTSTRAP: Final = "kafka.bootstrap.servers"
SECURITY_PROFILE: Final = "securityProfile"
"""The option that names a security profile. Spark prints options in plans and keeps them in event logs, so
that no option may hold a secret: each process resolves the name itself."""
DEFAULT_TIMEOUT_MS: Final = 30_000

_clusters: dict[tuple[int, int, ClusterConnection], Cluster] = {}
"""The open clusters of each thread. Python workers serve task after task, and a connection outlives each of
them. A forked worker shares nothing with its parent, so the process id is part of the key. A number that a
thread has inherited from one that ended comes with that one's clusters, which are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConnection:
    """The way to a cluster, as plain data: it travels to the tasks, which open their own connections."""

    bootstrap: str
    """The addresses, and before them the name of the security profile."""
    client_id: str = "headrace-spark"
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000

    @classmethod
    def of(cls, options: Options) -> Self:
        """The link that the options describe."""
        bootstrap = options.required(BOOTSTRAP, 'name the brokers, for example "127.0.0.1:9092"')
        _refuse_security(options.client_options())
        bootstrap = _with_option(bootstrap, options.text(SECURITY_PROFILE))
        timeout_ms = options.number("kafka.request.timeout.ms") or DEFAULT_TIMEOUT_MS
        client_id = options.text("kafka.client.id") or "headrace-spark"
        return cls(bootstrap=bootstrap, client_id=client_id, timeout_s=timeout_ms / 1000)

    def cluster(self) -> Cluster:
        """The cluster of this thread at the other end, opened once and kept."""
        from headrace.client.cluster import Cluster

        key = self._key
        if key not in _clusters:
            _clusters[key] = Cluster.of(self.bootstrap, client_id=self.client_id, timeout_s=self.timeout_s)
        return _clusters[key]

    def hang_up(self) -> None:
        """Close what this thread has open at the other end."""
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
