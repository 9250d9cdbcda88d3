"""The partitions that a source reads, where they begin and end now, and which records are lost.

Retention removes the oldest records of a partition; deleting a topic and creating it again removes all of
them. In both cases a reader has lost records that it had not read. `failOnDataLoss` decides whether it stops.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.client.errors import UnknownPartition
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption, DataLost, UnknownTopic
from headrace.spark.offsets import Range, part_of, read_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, KeysView, Mapping

    from headrace.client.cluster import Cluster
    from headrace.spark.offsets import Positions, TopicIds
    from headrace.spark.options import ClusterConnection, Options
    from headrace.spark.source import SourceSettings


WAYS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What was subscribed to: exactly one of topics, a pattern, and partitions."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, options: Options) -> Self:
        """The subscription that the options describe."""
        given = [way for way in WAYS if (options.text(way) or "").strip()]
        if len(given) != 1:
            seen = " and ".join(given) if given else "none"
            raise BadOption(f"say what to read by exactly one of {', '.join(WAYS)}; here it was {seen}")
        way, text = given[0], options.required(given[0], "name a topic")
        if way == "subscribe":
            return cls(topics=_names(text))
        if way == "subscribePattern":
            return cls(pattern=_pattern(text))
        return cls(assigned=read_partitions(way, text))

    def partitions(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        A topic that matches the pattern is among them as soon as it exists.
        """
        if self.pattern:
            matches = re.compile(self.pattern).fullmatch
            found = [
                topic for topic in cluster.topics().values() if not topic.internal and matches(topic.name)
            ]
        else:
            names = self.topics or sorted({partition.topic for partition in self.assigned})
            found = list(cluster.topics(names).values())
        existing = {
            TopicPartition(topic.name, number): topic.topic_id
            for topic in found
            for number in topic.partitions
        }
        if not self.assigned:
            return existing
        return {partition: existing[partition] for partition in self.assigned if partition in existing}

    def covers(self, partition: TopicPartition) -> bool:
        """Whether `partition` is part of the subscription, also if it does not exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition in self.assigned or partition.topic in self.topics

    def existing(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        Raises `UnknownTopic` for a named topic or partition that does not exist.
        """
        partitions = self.partitions(cluster)
        topics = {partition.topic for partition in partitions}
        missing = [repr(topic) for topic in self.topics if topic not in topics]
        missing += [str(partition) for partition in self.assigned if partition not in partitions]
        if missing:
            raise UnknownTopic(
                f"the cluster has no {', '.join(missing)}: check the name, or create the topic first. "
                "subscribePattern also finds topics that are created later."
            )
        return partitions


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise BadOption(f"subscribe is {text!r}: write topic names with commas between")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise BadOption(
            f"subscribePattern is {text!r}, which is not a regular expression: {fault}"
        ) from fault
    return text


log = logging.getLogger("headrace.spark")


def report_data_loss(partition: TopicPartition, start: int, end: int, found: str, *, fail: bool) -> None:
    """Report that the offsets from `start` up to `end` are lost, by an error or a warning."""
    _fail_or_warn(f"{partition} lost the offsets {start} to {end - 1}: {found}", end - start, fail=fail)


def report_missing_partition(partition: TopicPartition, position: int, *, fail: bool) -> None:
    """Report that a partition was deleted that was read up to `position`: later records may be lost."""
    _fail_or_warn(f"{partition} was read up to {position} and no longer exists", 0, fail=fail)


def report_recreated_topic(topic: str, *, fail: bool) -> None:
    """Report that a topic was deleted and re-created: records of the old one after the positions are lost."""
    _fail_or_warn(f"the topic {topic!r} was deleted and re-created since it was last read", 0, fail=fail)


def _fail_or_warn(lost: str, count: int, *, fail: bool) -> None:
    if fail:
        raise DataLost(
            f"{lost}. Retention removed them, or the topic was deleted. To continue without them, reset the "
            "job (`headrace job reset JOB --to start`), or set the option failOnDataLoss of a plain query to "
            "false."
        )
    log.warning("data loss, %d offsets skipped: %s", count, lost)


def available_ranges(ranges: Iterable[Range], first: Positions, end: Positions, *, fail: bool) -> list[Range]:
    """The parts of `ranges` that the log still has, from `first` up to `end`; lost ones are reported."""
    return [left for wanted in ranges if (left := _available(wanted, first, end, fail=fail)).size > 0]


def _available(wanted: Range, first: Positions, end: Positions, *, fail: bool) -> Range:
    partition, start, until = wanted
    if wanted.size <= 0:
        return wanted
    if partition not in first:
        report_data_loss(partition, start, until, "the partition no longer exists", fail=fail)
        return Range(partition, until, until)
    found = f"the log has {first[partition]} to {end[partition] - 1}"
    if start < first[partition]:
        report_data_loss(partition, start, min(first[partition], until), found, fail=fail)
    if until > end[partition]:
        report_data_loss(partition, max(start, end[partition]), until, found, fail=fail)
    return Range(partition, max(start, first[partition]), min(until, end[partition]))


DISCOVERY_S: Final = 1.0
"""The maximum age of the list of partitions: a new one is found after at most this time."""


class OffsetReader:
    """Looks up the partitions and offsets of a subscription, and detects deleted partitions."""

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
        """The partitions that exist now; raises `UnknownTopic` for a named one that does not."""
        # The first batch follows immediately, and needs no second lookup.
        self._found = self._subscription.existing(self._link.cluster())
        self._found_at = time.monotonic()
        return self._found.keys()

    def covers(self, partition: TopicPartition) -> bool:
        """Whether `partition` is part of the subscription, also if it does not exist."""
        return self._subscription.covers(partition)

    def latest(self, known: Positions) -> Positions:
        """The end of every partition that exists; `topic_ids` are those of the same lookup.

        If there is something to read, or a partition is missing, the partitions are looked up again: the
        topic may have been re-created since the last lookup.
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
        partitions = self._partitions(refresh=True)
        if is_shorter or partitions != latest.keys() or self.topic_ids != ids:
            latest = self._ends(partitions)
        return latest

    def recreated(self, ids: TopicIds) -> set[str]:
        """The topics whose id differs from that in `ids`; each is reported as data loss."""
        topics = {topic for topic, found in self.topic_ids.items() if ids.get(topic, found) != found}
        for topic in sorted(topics):
            report_recreated_topic(topic, fail=self._fail)
        return topics

    def beginnings(self, new: Collection[TopicPartition]) -> Positions:
        """The first offsets that these partitions hold."""
        return self._list(dict.fromkeys(new, EARLIEST))

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> Positions:
        """The first offset at or after a time in each partition, or −1."""
        return self._list(times_ms)

    def check_for_loss(self, begun: Positions, latest: Positions) -> None:
        """Report partitions that were deleted or truncated, once each."""
        for partition, start in begun.items():
            if not self.covers(partition) or start <= latest.get(partition, -1):
                self._missed.discard(partition)
            elif partition not in self._missed:
                self._missed.add(partition)
                self._report_loss(partition, start, latest.get(partition))

    def available_ranges(self, ranges: list[Range], ids: TopicIds) -> list[Range]:
        """The ranges in the topics of these ids, checked against the log where a part of them may be lost.

        After a restart the checkpoint may be older than the log. Later, tasks detect a loss themselves, and
        only a query that tolerates data loss checks before each batch.
        """
        if self._checked and self._fail:
            return ranges
        self._checked = True
        partitions = self._partitions(refresh=True)
        recreated = self.recreated(ids)
        wanted = [given for given in ranges if given.size > 0 and given.partition.topic not in recreated]
        existing = partitions & {given.partition for given in wanted}
        first, end = (self._list(dict.fromkeys(existing, which)) for which in (EARLIEST, LATEST))
        return available_ranges(wanted, first, end, fail=self._fail)

    def _gone(self, known: Positions, latest: Positions) -> bool:
        missing = {partition for partition in known.keys() - latest.keys() if self.covers(partition)}
        return bool(missing - self._missed)

    def _partitions(self, *, refresh: bool = False) -> KeysView[TopicPartition]:
        if refresh or time.monotonic() - self._found_at > DISCOVERY_S:
            self._found = self._subscription.partitions(self._link.cluster())
            self._found_at = time.monotonic()
        return self._found.keys()

    def _ends(self, partitions: Collection[TopicPartition]) -> Positions:
        try:
            return self._list(dict.fromkeys(partitions, LATEST))
        except UnknownPartition:
            return self._list(dict.fromkeys(self._partitions(refresh=True), LATEST))

    def _list(self, asked: Mapping[TopicPartition, int]) -> Positions:
        if not asked:
            return {}
        return list_offsets(self._link.cluster(), asked, read_committed=self._read_committed)

    def _report_loss(self, partition: TopicPartition, start: int, end: int | None) -> None:
        if end is None:
            report_missing_partition(partition, start, fail=self._fail)
        else:
            found = f"the log now ends at {end}, and was read up to {start}"
            report_data_loss(partition, end, start, found, fail=self._fail)


class Following:
    """Topics whose positions are journaled with each batch, although Spark reads no row of them.

    An operator that keeps a copy of such a topic reads it up to the journaled position, so a repeated batch
    sees the same copy. A topic that does not exist does not make the query fail.
    """

    def __init__(self, settings: SourceSettings) -> None:
        # Positions of topics that are read are journaled already.
        self.topics = tuple(topic for topic in settings.follow if topic not in settings.subscription.topics)
        self._offset_reader = OffsetReader(
            settings.link,
            Subscription(topics=self.topics),
            read_committed=settings.read_committed,
            fail_on_data_loss=settings.fail_on_data_loss,
        )
        self._target: Positions | None = None

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of the followed topics that exist."""
        return self._offset_reader.topic_ids

    def recreated(self, ids: TopicIds) -> set[str]:
        """The followed topics whose id differs from that in `ids`: a copy of the old topic is not valid."""
        return self._offset_reader.recreated(ids)

    def beginnings(self) -> Positions:
        """Where a new query begins: a copy needs all records."""
        return self._offset_reader.beginnings(self._latest({}).keys()) if self.topics else {}

    def freeze(self) -> None:
        """Fix the ends of the topics: the query ends when it has reached them."""
        self._target = self._latest({}) if self.topics else {}

    def ends(self, begun: Positions) -> Positions:
        """Where the next batch ends; a deleted partition keeps its position."""
        if not self.topics:
            return {}
        followed = part_of(begun, self.topics)
        return followed | (self._latest(followed) if self._target is None else self._target)

    def _latest(self, known: Positions) -> Positions:
        try:
            return self._offset_reader.latest(known)
        except UnknownPartition:
            return {}
