"""`spark.readStream.format("headrace")`: micro-batch after micro-batch, from position to position.

Spark journals the positions that `latestOffset` returns and hands them back after a crash, so a batch that
runs again reads the same records. All but `read` is called in one process that lives as long as the query.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.client.errors import UnknownPartition
from headrace.client.groups import commit_offsets
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.errors import HeadraceError
from headrace.spark.bounds import Bound
from headrace.spark.data_loss import report, report_gone, what_is_left
from headrace.spark.durations import read_duration_s
from headrace.spark.planning import ranges_between, share_out
from headrace.spark.positions import read_journal, write_journal
from headrace.spark.reading import Task
from headrace.spark.source_settings import ENDING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from headrace.client.partition import TopicPartition
    from headrace.spark.planning import Range
    from headrace.spark.positions import Journal, Positions
    from headrace.spark.source_settings import SourceSettings

DISCOVERY_S: Final = 1.0
"""How old the list of partitions may be: new ones are read from this long after they are there."""
DEFAULT_TRIGGER_DELAY: Final = "15m"

log = logging.getLogger("headrace.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of topics, in which every position is kept by Spark and none by a consumer group."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        settings.refuse(ENDING, "a stream has no end")
        options = settings.options
        self._settings = settings
        self._reading = settings.reading(schema)
        self._starting = Bound.starting(options, default="latest")
        self._group = options.text("kafka.group.id")
        self._most = options.number("maxOffsetsPerTrigger")
        self._least = options.number("minOffsetsPerTrigger")
        self._longest_wait_s = read_duration_s(
            "maxTriggerDelay", options.text("maxTriggerDelay") or DEFAULT_TRIGGER_DELAY
        )
        self._found: frozenset[TopicPartition] = frozenset()
        self._found_at = float("-inf")
        self._latest: Positions = {}
        self._target: Positions | None = None
        self._last_batch_at = time.monotonic()
        self._published: Positions = {}
        self._missed: set[TopicPartition] = set()
        self._checked = False

    def initialOffset(self) -> Journal:  # noqa: N802  # Spark's name
        """Where a new query begins."""
        cluster = self._settings.link.cluster()
        partitions = self._settings.subscription.existing(cluster)
        committed = self._settings.read_committed
        # The first batch follows at once, and needs no second look for what exists.
        self._found, self._found_at = partitions, time.monotonic()
        return write_journal(self._starting.resolve(cluster, partitions, read_committed=committed))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The limit that the options set."""
        if self._most is not None:
            return ReadMaxRows(self._most)
        return ReadMinRows(self._least) if self._least is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remember the end of everything that is there: the query ends when it has reached it."""
        self._target = self._ask_latest({})

    def latestOffset(self, start: Journal, limit: ReadLimit) -> Journal:  # noqa: N802  # Spark's name
        """Where the next batch ends; `start` itself where there is nothing to be read."""
        begun = read_journal(start)
        # Spark asks for the next batch when the one before is done, and after the last one of all, for which
        # it never calls `commit`.
        self._publish(begun)
        latest = self._ask_latest(begun) if self._target is None else dict(self._target)
        self._latest = latest
        self._check_for_loss(begun, latest)
        begun = begun | self._beginnings(latest.keys() - begun.keys())
        if self._is_too_little(begun, latest, limit):
            return start
        if isinstance(limit, ReadMaxRows):
            latest = share_out(begun, latest, limit.max_rows)
        self._last_batch_at = time.monotonic()
        # A partition that is not subscribed to any more keeps its place, for the day it is again.
        return write_journal(begun | latest)

    def reportLatestOffset(self) -> Journal | None:  # noqa: N802  # Spark's name
        """The end of everything, as the last batch found it."""
        return write_journal(self._latest) if self._latest else None

    def partitions(self, start: Journal, end: Journal) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        begun, until = read_journal(start), read_journal(end)
        begun = begun | self._beginnings(until.keys() - begun.keys())
        return self._settings.tasks(self._what_is_left(ranges_between(begun, until)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Task)
        return self._reading.rows(partition.ranges)

    def commit(self, end: Journal) -> None:
        """All before `end` is done."""
        self._publish(read_journal(end))

    def stop(self) -> None:
        """Hang up."""
        self._settings.link.hang_up()

    def _publish(self, done: Positions) -> None:
        """Commit positions to the consumer group, for everyone who watches lag."""
        if self._group is None or done == self._published:
            return
        self._published = done
        try:
            commit_offsets(self._settings.link.cluster(), self._group, done)
        except HeadraceError as fault:
            # The checkpoint has the positions: a group that lags behind for a batch harms nobody.
            log.warning("progress was not committed to the group %r: %s", self._group, fault)

    def _ask_latest(self, known: Positions) -> Positions:
        """The end of every partition that exists, looked up again where one is not what it was."""
        latest = self._ends(self._partitions())
        gone = {partition for partition in known.keys() - latest.keys() if self._is_subscribed(partition)}
        shorter = {partition for partition, end in latest.items() if end < known.get(partition, 0)}
        if (gone | shorter) - self._missed:
            # A broker that has just started may not know everything yet.
            self._settings.link.cluster().refresh()
            latest = self._ends(self._partitions(anew=True))
        return latest

    def _partitions(self, *, anew: bool = False) -> frozenset[TopicPartition]:
        if anew or time.monotonic() - self._found_at > DISCOVERY_S:
            self._found = self._settings.subscription.partitions(self._settings.link.cluster())
            self._found_at = time.monotonic()
        return self._found

    def _ends(self, partitions: Collection[TopicPartition]) -> Positions:
        try:
            return self._list(partitions, LATEST)
        except UnknownPartition:
            return self._list(self._partitions(anew=True), LATEST)

    def _list(self, partitions: Collection[TopicPartition], which: int) -> Positions:
        if not partitions:
            return {}
        asked = dict.fromkeys(partitions, which)
        return list_offsets(
            self._settings.link.cluster(), asked, read_committed=self._settings.read_committed
        )

    def _beginnings(self, new: Collection[TopicPartition]) -> Positions:
        return self._list(new, EARLIEST)

    def _is_subscribed(self, partition: TopicPartition) -> bool:
        return self._settings.subscription.covers(partition)

    def _check_for_loss(self, begun: Positions, latest: Positions) -> None:
        """Report partitions that went away or became shorter, once each."""
        fail = self._settings.fail_on_data_loss
        for partition, start in begun.items():
            if not self._is_subscribed(partition) or start <= latest.get(partition, -1):
                self._missed.discard(partition)
            elif partition not in self._missed:
                self._missed.add(partition)
                self._report_loss(partition, start, latest.get(partition), fail=fail)

    def _report_loss(self, partition: TopicPartition, start: int, end: int | None, *, fail: bool) -> None:
        if end is None:
            report_gone(partition, start, fail=fail)
        else:
            report(partition, end, start, f"the log now ends at {end}, and was read up to {start}", fail=fail)

    def _is_too_little(self, begun: Positions, latest: Positions, limit: ReadLimit) -> bool:
        if self._least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waiting = sum(max(0, end - begun[partition]) for partition, end in latest.items())
        return waiting < self._least and time.monotonic() - self._last_batch_at < self._longest_wait_s

    def _what_is_left(self, ranges: list[Range]) -> list[Range]:
        """The ranges, checked against the log where a part of them may be gone.

        A query that begins anew may find its checkpoint older than the log; later on, tasks notice a loss
        themselves, and only a query that is to survive it asks beforehand.
        """
        if self._checked and self._settings.fail_on_data_loss:
            return ranges
        self._checked = True
        wanted = [given for given in ranges if given.size > 0]
        existing = self._partitions(anew=True) & {given.partition for given in wanted}
        first, end = self._list(existing, EARLIEST), self._list(existing, LATEST)
        return what_is_left(wanted, first, end, fail=self._settings.fail_on_data_loss)
