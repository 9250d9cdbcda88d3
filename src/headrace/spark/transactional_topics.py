"""The topics that a job writes to, and how many partitions they have now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.spark.errors import UnknownTopic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.client.cluster import Cluster

FRESH_S: Final = 10.0
"""How long the number of partitions is believed. A topic that has grown is written with its new number then:
as with every Kafka producer, a key may move to another partition at that moment."""


class OutputTopics:
    """Partition counts of a job's output topics, asked for now and then."""

    def __init__(self, cluster: Cluster, names: Sequence[str], *, fresh_s: float = FRESH_S) -> None:
        self._cluster = cluster
        self._names = tuple(names)
        self._fresh_s = fresh_s
        self._counts: dict[str, int] = {}
        self._asked_at = 0.0

    def partition_counts(self) -> dict[str, int]:
        """How many partitions each topic has; `UnknownTopic` when one is missing."""
        now = time.monotonic()
        if not self._counts or now - self._asked_at > self._fresh_s:
            self._counts = self._ask()
            self._asked_at = now
        return self._counts

    def _ask(self) -> dict[str, int]:
        found = self._cluster.topics(self._names)
        missing = [name for name in self._names if name not in found]
        if missing:
            raise UnknownTopic(
                f"the job is to write to {', '.join(missing)}, and the cluster has no such topic. Create it "
                "first, with as many partitions as it is to have."
            )
        return {name: len(found[name].partitions) for name in self._names}
