"""What a stream can read at this moment: the partitions that exist, their beginnings and their ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.client.errors import UnknownPartition
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.spark.data_loss import report, report_gone, report_recreated, what_is_left

if TYPE_CHECKING:
    from collections.abc import Collection, KeysView, Mapping

    from headrace.client.partition import TopicPartition
    from headrace.spark.cluster_connection import ClusterConnection
    from headrace.spark.planning import Range
    from headrace.spark.positions import Positions, TopicIds
    from headrace.spark.subscription import Subscription

DISCOVERY_S: Final = 1.0
"""How old the list of partitions may be: new ones are read from this long after they are there."""


class OffsetReader:
    """Asks the brokers about what is subscribed to, and notices what is gone."""

    def __init__(
        self,
        link: ClusterConnection,
        subscription: Subscription,
        *,
        read_committed: bool,
        fail_on_data_loss: bool,
    ) -> None:
        self._link = link
        self._subscription = subscription
        self._read_committed = read_committed
        self._fail = fail_on_data_loss
        self._found: Mapping[TopicPartition, str | None] = {}
        self._found_at = float("-inf")
        self._missed: set[TopicPartition] = set()
        self._checked = False

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of the topics, as they were when partitions were last looked up."""
        return {partition.topic: found for partition, found in self._found.items() if found is not None}

    def existing(self) -> Collection[TopicPartition]:
        """The partitions that exist now; an error where something was named that does not exist."""
        # The first batch follows immediately, and needs no second lookup.
        self._found = self._subscription.existing(self._link.cluster())
        self._found_at = time.monotonic()
        return self._found.keys()

    def covers(self, partition: TopicPartition) -> bool:
        """Whether `partition` would be read, did it exist."""
        return self._subscription.covers(partition)

    def latest(self, known: Positions) -> Positions:
        """The end of every partition that exists; `topic_ids` are those of the same moment.

        Where there is something to read, or something is missing, the partitions are looked up again: the
        ends may be those of a topic that was re-created since the last lookup.
        """
        latest = self._ends(self._partitions())
        if latest == {partition: known.get(partition) for partition in latest} and not self._gone(
            known, latest
        ):
            return latest
        ids = self.topic_ids
        is_shorter = any(end < known.get(partition, 0) for partition, end in latest.items())
        if is_shorter or self._gone(known, latest):
            # A broker that has just started may not know everything yet.
            self._link.cluster().refresh()
        partitions = self._partitions(anew=True)
        if is_shorter or partitions != latest.keys() or self.topic_ids != ids:
            latest = self._ends(partitions)
        return latest

    def recreated(self, ids: TopicIds) -> set[str]:
        """The topics that have another id than `ids` says; each is reported as a loss of data."""
        topics = {topic for topic, found in self.topic_ids.items() if ids.get(topic, found) != found}
        for topic in sorted(topics):
            report_recreated(topic, fail=self._fail)
        return topics

    def beginnings(self, new: Collection[TopicPartition]) -> Positions:
        """The first offsets that these partitions hold."""
        return self._list(dict.fromkeys(new, EARLIEST))

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> Positions:
        """The first offset at or after a time in each partition, −1 where there is none."""
        return self._list(times_ms)

    def check_for_loss(self, begun: Positions, latest: Positions) -> None:
        """Report partitions that went away or became shorter, once each."""
        for partition, start in begun.items():
            if not self.covers(partition) or start <= latest.get(partition, -1):
                self._missed.discard(partition)
            elif partition not in self._missed:
                self._missed.add(partition)
                self._report_loss(partition, start, latest.get(partition))

    def what_is_left(self, ranges: list[Range], ids: TopicIds) -> list[Range]:
        """The ranges in the topics of these ids, checked against the log where a part of them may be gone.

        A query that is started again may find its checkpoint older than the log; later on, tasks notice a
        loss themselves, and only a query that tolerates losses checks before each batch.
        """
        if self._checked and self._fail:
            return ranges
        self._checked = True
        partitions = self._partitions(anew=True)
        recreated = self.recreated(ids)
        wanted = [given for given in ranges if given.size > 0 and given.partition.topic not in recreated]
        existing = partitions & {given.partition for given in wanted}
        first, end = (self._list(dict.fromkeys(existing, which)) for which in (EARLIEST, LATEST))
        return what_is_left(wanted, first, end, fail=self._fail)

    def _gone(self, known: Positions, latest: Positions) -> bool:
        missing = {partition for partition in known.keys() - latest.keys() if self.covers(partition)}
        return bool(missing - self._missed)

    def _partitions(self, *, anew: bool = False) -> KeysView[TopicPartition]:
        if anew or time.monotonic() - self._found_at > DISCOVERY_S:
            self._found = self._subscription.partitions(self._link.cluster())
            self._found_at = time.monotonic()
        return self._found.keys()

    def _ends(self, partitions: Collection[TopicPartition]) -> Positions:
        try:
            return self._list(dict.fromkeys(partitions, LATEST))
        except UnknownPartition:
            return self._list(dict.fromkeys(self._partitions(anew=True), LATEST))

    def _list(self, asked: Mapping[TopicPartition, int]) -> Positions:
        if not asked:
            return {}
        return list_offsets(self._link.cluster(), asked, read_committed=self._read_committed)

    def _report_loss(self, partition: TopicPartition, start: int, end: int | None) -> None:
        if end is None:
            report_gone(partition, start, fail=self._fail)
        else:
            found = f"the log now ends at {end}, and was read up to {start}"
            report(partition, end, start, found, fail=self._fail)
