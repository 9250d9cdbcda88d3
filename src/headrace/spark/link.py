"""How a source or a sink reaches its brokers: addresses, names and patience, from the `kafka.*` options."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.spark.options import Options

BOOTSTRAP: Final = "kafka.bootstrap.servers"
DEFAULT_TIMEOUT_MS: Final = 30_000

_clusters: dict[tuple[int, int, Link], Cluster] = {}
"""The open clusters of each thread. Python workers serve task after task, and a connection outlives each of
them. A forked worker shares nothing with its parent, so the process id is part of the key. A number that a
thread has inherited from one that ended comes with that one's clusters, which are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way to a cluster, as plain data: it travels to the tasks, which open their own connections."""

    bootstrap: str
    client_id: str = "headrace-spark"
    timeout_s: float = DEFAULT_TIMEOUT_MS / 1000

    @classmethod
    def of(cls, options: Options) -> Self:
        """The link that the options describe."""
        bootstrap = options.required(BOOTSTRAP, 'name the brokers, for example "127.0.0.1:9092"')
        _refuse_security(options.client_options())
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
    def _key(self) -> tuple[int, int, Link]:
        return os.getpid(), threading.get_ident(), self


def _refuse_security(client_options: dict[str, str]) -> None:
    protocol = client_options.get("security.protocol", "PLAINTEXT")
    secured = [name for name in client_options if name.startswith(("sasl.", "ssl."))]
    if protocol.upper() != "PLAINTEXT" or secured:
        name = f"kafka.{secured[0]}" if secured else "kafka.security.protocol"
        raise BadOption(
            f"the option {name} is not supported: this source and sink reach brokers by plain TCP only. "
            "Use a listener without TLS and SASL inside a trusted network."
        )
