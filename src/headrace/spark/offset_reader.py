"""Reads offsets from the brokers: where reading begins and ends, the current ends, and lost records.

A bound is what the user set; it is resolved by the brokers to one offset for each partition. As in Spark's
Kafka source, `startingTimestamp` takes precedence over `startingOffsetsByTimestamp`, and that over
`startingOffsets`; the same holds for the ending.

Retention removes the oldest records of a partition; deleting a topic and creating it again removes all of
them. In both cases a reader has lost records that it had not read. `failOnDataLoss` decides whether it stops.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from headrace.client.errors import UnknownPartition
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.spark.errors import BadOption, DataLost
from headrace.spark.offsets import Range, part_of, read_positions
from headrace.spark.source import Subscription

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, KeysView, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.partition import TopicPartition
    from headrace.spark.offsets import Positions, TopicIds
    from headrace.spark.options import ClusterConnection, Options
    from headrace.spark.source import SourceSettings


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


WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or the end of what is read."""

    option: str
    everywhere: int | None = None
    """EARLIEST or LATEST, or nothing."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest_when_too_late: bool = False
    """Whether a time after the last record means the end of the partition; otherwise it is an error."""

    @classmethod
    def starting(cls, options: Options, *, default: str) -> Self:
        """Where reading begins."""
        choices = {"error": False, "latest": True}
        lenient = options.choice("startingOffsetsByTimestampStrategy", choices, default="error")
        return cls._of(options, "starting", default=default, lenient=lenient)

    @classmethod
    def ending(cls, options: Options) -> Self:
        """Where a batch read ends; a time after the last record means the end."""
        bound = cls._of(options, "ending", default="latest", lenient=True)
        if bound.everywhere == EARLIEST or EARLIEST in bound.offsets.values():
            raise BadOption(f"{bound.option} cannot be earliest (-2): nothing lies before the first record")
        return bound

    @classmethod
    def _of(cls, options: Options, side: str, *, default: str, lenient: bool) -> Self:
        by_time, by_times, by_offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
        time_ms = options.number(by_time, at_least=0)
        if time_ms is not None:
            return cls(option=by_time, time_ms=time_ms, latest_when_too_late=lenient)
        times = options.text(by_times)
        if times is not None:
            times_ms = read_positions(by_times, times)
            return cls(option=by_times, times_ms=times_ms, latest_when_too_late=lenient)
        text = (options.text(by_offsets) or default).strip()
        if text.lower() in WORDS:
            return cls(option=by_offsets, everywhere=WORDS[text.lower()])
        return cls(option=by_offsets, offsets=read_positions(by_offsets, text))

    def is_latest(self) -> bool:
        """Whether it is the end of a partition, where a batch read cannot begin."""
        return self.everywhere == LATEST or LATEST in self.offsets.values()

    def resolve(
        self, cluster: Cluster, partitions: Collection[TopicPartition], *, read_committed: bool
    ) -> Positions:
        """One offset for each of `partitions`."""
        wanted = self._wanted(partitions)
        if self.time_ms is not None or self.times_ms:
            return self._resolve_times(cluster, wanted, read_committed=read_committed)
        asked = {partition: offset for partition, offset in wanted.items() if offset < 0}
        answered = list_offsets(cluster, asked, read_committed=read_committed) if asked else {}
        return wanted | answered

    def _wanted(self, partitions: Collection[TopicPartition]) -> Positions:
        everywhere = self.everywhere if self.time_ms is None else self.time_ms
        if everywhere is not None:
            return dict.fromkeys(partitions, everywhere)
        chosen = self.offsets or self.times_ms
        unknown, left_out = set(chosen) - set(partitions), set(partitions) - set(chosen)
        if unknown or left_out:
            what = f"names {_list(unknown)}, not read here" if unknown else f"leaves out {_list(left_out)}"
            raise BadOption(
                f"{self.option} {what}: name every partition that is read, with -2 for its beginning "
                "and -1 for its end"
            )
        return dict(chosen)

    def _resolve_times(self, cluster: Cluster, times_ms: Positions, *, read_committed: bool) -> Positions:
        found = list_offsets(cluster, times_ms, read_committed=read_committed)
        too_late = [partition for partition, offset in found.items() if offset < 0]
        if too_late and not self.latest_when_too_late:
            raise BadOption(
                f"{self.option}: no record of {_list(too_late)} is as late as that time. "
                "Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest"
            )
        ends = dict.fromkeys(too_late, LATEST)
        return found | (list_offsets(cluster, ends, read_committed=read_committed) if ends else {})


def _list(partitions: Collection[TopicPartition]) -> str:
    return ", ".join(f"{partition.topic}-{partition.partition}" for partition in sorted(partitions))


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

    def freeze(self, target: Positions) -> None:
        """Fix the ends of the topics: the query ends when it has reached them."""
        self._target = part_of(target, self.topics)

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
