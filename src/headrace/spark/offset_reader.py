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
        """Whether `partition` would be read, did it exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition in self.assigned or partition.topic in self.topics

    def existing(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        `UnknownTopic` where something was named that does not exist.
        """
        partitions = self.partitions(cluster)
        topics = {partition.topic for partition in partitions}
        missing = [repr(topic) for topic in self.topics if topic not in topics]
        missing += [str(partition) for partition in self.assigned if partition not in partitions]
        if missing:
            raise UnknownTopic(
                f"the cluster has no {', '.join(missing)}: check the name, or create the topic first. "
                "A topic that comes later is found by subscribePattern."
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
    """Say that the offsets from `start` up to `end` are lost, in an error or in a warning."""
    _fail_or_warn(f"{partition} lost the offsets {start} to {end - 1}: {found}", end - start, fail=fail)


def report_missing_partition(partition: TopicPartition, position: int, *, fail: bool) -> None:
    """Say that a partition is gone that was read up to `position`: nobody knows what it held beyond."""
    _fail_or_warn(f"{partition} was read up to {position} and no longer exists", 0, fail=fail)


def report_recreated_topic(topic: str, *, fail: bool) -> None:
    """Say that a topic was deleted and re-created: what the old one held beyond the positions is lost."""
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
    """The parts of `ranges` that the log still has, from `first` up to `end`; what is lost is reported."""
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
            report_recreated_topic(topic, fail=self._fail)
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

    def available_ranges(self, ranges: list[Range], ids: TopicIds) -> list[Range]:
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
        return available_ranges(wanted, first, end, fail=self._fail)

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
            report_missing_partition(partition, start, fail=self._fail)
        else:
            found = f"the log now ends at {end}, and was read up to {start}"
            report_data_loss(partition, end, start, found, fail=self._fail)


class Following:
    """The followed topics of one source; one that is absent does not make its query fail."""

    def __init__(self, settings: SourceSettings) -> None:
        # What is read is followed already.
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
        """The followed topics that have another id than `ids` says: a copy of the old one is not theirs."""
        return self._offset_reader.recreated(ids)

    def beginnings(self) -> Positions:
        """Where a new query begins: a copy needs all that is there."""
        return self._offset_reader.beginnings(self._latest({}).keys()) if self.topics else {}

    def freeze(self) -> None:
        """Let the end of all that is there be the end for good."""
        self._target = self._latest({}) if self.topics else {}

    def ends(self, begun: Positions) -> Positions:
        """Where the next batch ends; a partition that is gone keeps its place."""
        if not self.topics:
            return {}
        followed = part_of(begun, self.topics)
        return followed | (self._latest(followed) if self._target is None else self._target)

    def _latest(self, known: Positions) -> Positions:
        try:
            return self._offset_reader.latest(known)
        except UnknownPartition:
            return {}
