"""`spark.readStream.format("headrace")`: micro-batch after micro-batch, from position to position.

Spark journals the positions that `latestOffset` returns and passes them back after a crash, so a repeated
batch reads the same records. The journal includes where partitions begin, also the first ones of a query:
that is resolved once. Everything but `read` is called in one process that lives as long as the query.
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

from headrace.client.errors import attempts
from headrace.client.offsets import commit_offsets
from headrace.errors import HeadraceError
from headrace.spark.errors import BadCheckpoint, SnapshotIncomplete
from headrace.spark.event_time import StreamTime
from headrace.spark.offset_reader import Bound, Following, OffsetReader
from headrace.spark.offsets import (
    FIRST,
    HEARTBEAT,
    TOPIC_IDS,
    initial_journal,
    is_initial,
    limit_offsets,
    part_of,
    ranges_between,
    read_first,
    read_journal,
    read_offset_marker,
    read_topic_ids,
    write_journal,
)
from headrace.spark.options import read_duration_s
from headrace.spark.source import ENDING, Task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from headrace.spark.offsets import Journal, Positions, Range
    from headrace.spark.source import SourceSettings
    from headrace.spark.whole_transactions import WholeTransactions

DEFAULT_TRIGGER_DELAY: Final = "15m"
OUTAGE_S: Final = 1.0
"""A broker that takes longer than this to return its end offsets counts as having been unavailable."""

COMMIT_TIMEOUT_S: Final = 30.0
"""How long a query that ends waits for a transaction that is being committed."""

log = logging.getLogger("headrace.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of topics. Spark keeps its positions, not a consumer group."""

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
        self._offset_reader = OffsetReader(
            settings.link,
            settings.subscription,
            read_committed=settings.read_committed,
            fail_on_data_loss=settings.fail_on_data_loss,
        )
        self._following = Following(settings)
        self._time = StreamTime(options)
        self._transactions: WholeTransactions | None = None
        if options.flag("wholeTransactions", default=False):
            from headrace.spark.whole_transactions import WholeTransactions

            self._transactions = WholeTransactions(
                settings.link, [*settings.subscription.topics, *self._following.topics]
            )
        self._positions_only = options.flag("positionsOnly", default=False)
        self._initial: Positions | None = None
        self._latest: Positions = {}
        self._target: Positions | None = None
        self._last_batch_at = time.monotonic()
        self._published: Positions = {}

    def initialOffset(self) -> Journal:  # noqa: N802  # Spark's name
        """A symbol for the start of a new query: the end of its first batch records where that is."""
        return initial_journal()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """The limit that the options set."""
        if self._most is not None:
            return ReadMaxRows(self._most)
        return ReadMinRows(self._least) if self._least is not None else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fix the current ends: the query ends when it has reached them (`availableNow`)."""
        target = self._visible_now()
        self._target = {at: end for at, end in target.items() if at.topic not in self._following.topics}
        self._following.freeze(target)
        self._time.ends_with_what_is_there()

    def latestOffset(self, start: Journal, limit: ReadLimit) -> Journal:  # noqa: N802  # Spark's name
        """Where the next batch ends; `start` itself if there is nothing to read."""
        begun = read_journal(start)
        # Spark asks for the next batch when the one before is done, and after the last one of all, for which
        # it never calls `commit`.
        self._publish(begun)
        first = self._initial_positions() if is_initial(start) else {}
        if self._transactions is not None and self._target is None:
            self._transactions.refresh()
        latest = self._latest = self._look(begun | first)
        followed = self._following.ends(begun | first)
        whole = self._whole(begun | first, latest | followed)
        if whole is None:
            return start
        latest, followed = self._read_here(whole), part_of(whole, self._following.topics)
        known_ids = read_topic_ids(start)
        recreated = self._offset_reader.recreated(known_ids) | self._following.recreated(known_ids)
        begun = {at: begun[at] for at in begun if at.topic not in recreated}
        first |= self._offset_reader.beginnings(latest.keys() - (begun | first).keys())
        begun |= first
        ends = self._ends(begun, latest, limit, must_move=is_initial(start) or bool(recreated))
        if ends is None:
            return start
        return self._journal(start, begun, ends | followed, first)

    def reportLatestOffset(self) -> Journal | None:  # noqa: N802  # Spark's name
        """The ends of all partitions, as of the last batch."""
        return write_journal(self._latest) if self._latest else None

    def partitions(self, start: Journal, end: Journal) -> Sequence[InputPartition]:
        """The tasks of a batch; each has only its number if an operator reads the topics itself."""
        if self._positions_only:
            return [Task((), number=number) for number in range(self._settings.min_partitions)]
        tasks = self._settings.tasks(self._ranges(start, end)) if start != end else []
        heartbeat_ms = read_offset_marker(end, HEARTBEAT)
        if heartbeat_ms == read_offset_marker(start, HEARTBEAT):
            return tasks
        return [*tasks, Task((), heartbeat_ms)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Task)
        if partition.number is not None:
            return self._reading.number(partition.number)
        if partition.heartbeat_ms is not None:
            return self._reading.heartbeat(partition.heartbeat_ms)
        return self._reading.rows(partition.ranges)

    def commit(self, end: Journal) -> None:
        """Everything before `end` is processed."""
        self._publish(read_journal(end))

    def stop(self) -> None:
        """Close the connections."""
        self._settings.link.hang_up()

    def _initial_positions(self) -> Positions:
        """Where a new query begins."""
        if self._initial is None:
            partitions = self._offset_reader.existing()
            committed = self._settings.read_committed
            cluster = self._settings.link.cluster()
            resolved = self._starting.resolve(cluster, partitions, read_committed=committed)
            self._initial = self._within_target(resolved) | self._following.beginnings()
        return dict(self._initial)

    def _within_target(self, resolved: Positions) -> Positions:
        """The positions, with `latest` limited to the fixed ends of a query that ends."""
        target, explicit = self._target or {}, self._starting.offsets
        return {
            partition: at if explicit.get(partition, -1) >= 0 else min(at, target.get(partition, at))
            for partition, at in resolved.items()
        }

    def _look(self, begun: Positions) -> Positions:
        """The ends of everything that the query may read."""
        if self._target is not None:
            return dict(self._target)
        asked_at = time.monotonic()
        latest = self._offset_reader.latest(begun)
        if time.monotonic() - asked_at > OUTAGE_S:
            self._time.broker_was_away()
        return latest

    def _visible_now(self) -> Positions:
        """The ends of all topics, with whole transactions if they are wanted."""
        for _ in attempts(COMMIT_TIMEOUT_S):
            if self._transactions is not None:
                self._transactions.refresh()
            visible = self._offset_reader.latest({}) | self._following.ends({})
            whole = self._whole({}, visible)
            if whole is not None:
                return whole
        raise SnapshotIncomplete(
            "the snapshots of captured tables are not complete, or a transaction of their capture does not "
            "end: start the capture, or wait until it has read the tables."
        )

    def _whole(self, begun: Positions, latest: Positions) -> Positions | None:
        """The ends up to which whole transactions are visible; None to wait for more."""
        if self._transactions is None or self._target is not None or latest == begun:
            return latest
        return self._transactions.ends(begun, latest)

    def _ends(
        self, begun: Positions, latest: Positions, limit: ReadLimit, *, must_move: bool
    ) -> Positions | None:
        """Where the next batch ends in the partitions that are read; None to wait for more records.

        With `must_move`, the end of the batch has markers to journal, also if no records were read.
        """
        self._offset_reader.check_for_loss(begun, latest)
        if self._is_too_little(begun, latest, limit):
            return {} if must_move else None
        self._last_batch_at = time.monotonic()
        if not isinstance(limit, ReadMaxRows):
            return latest
        if self._time.alignment is None:
            return limit_offsets(begun, latest, limit.max_rows)
        return self._time.alignment.ends(begun, latest, limit.max_rows, self._at_time)

    def _journal(self, start: Journal, begun: Positions, ends: Positions, first: Positions) -> Journal:
        """What Spark journals as the end of a batch; `start` where nothing has changed."""
        # A partition that is no longer subscribed to keeps its position, in case it is again.
        journal = write_journal(begun | ends)
        ids = read_topic_ids(start) | self._offset_reader.topic_ids | self._following.topic_ids
        signs = start | self._time.first_signs(self._read_here(begun)) if is_initial(start) else start
        journal |= {TOPIC_IDS: ids} if ids else {}
        journal |= self._time.signs(signs, self._read_here(begun), self._read_here(begun | ends))
        if journal == {name: entry for name, entry in start.items() if name != FIRST}:
            return start
        return journal | ({FIRST: write_journal(first)} if first or is_initial(start) else {})

    def _ranges(self, start: Journal, end: Journal) -> list[Range]:
        """The ranges of a batch, without lost records."""
        if is_initial(start) and FIRST not in end:
            raise BadCheckpoint(
                "the checkpoint does not say where its first batch begins: another source, or an earlier "
                "version of this one, planned that batch. Start the query with a new checkpoint."
            )
        begun, until = read_journal(start) | read_first(end), self._read_here(read_journal(end))
        # Spark's own Kafka source does not journal where new partitions begin.
        begun |= self._offset_reader.beginnings(until.keys() - begun.keys())
        return self._offset_reader.available_ranges(ranges_between(begun, until), read_topic_ids(end))

    def _at_time(self, time_ms: int) -> Positions:
        return self._offset_reader.at_times(dict.fromkeys(self._latest, time_ms))

    def _read_here(self, positions: Positions) -> Positions:
        """The positions without those of topics that are only followed."""
        followed = self._following.topics
        return {partition: at for partition, at in positions.items() if partition.topic not in followed}

    def _publish(self, done: Positions) -> None:
        """Commit positions to the consumer group, for tools that show lag."""
        if self._group is None or done == self._published:
            return
        self._published = done
        try:
            commit_offsets(self._settings.link.cluster(), self._group, done)
        except HeadraceError as fault:
            # The checkpoint has the positions: a failed commit only delays the shown lag by a batch.
            log.warning("progress was not committed to the group %r: %s", self._group, fault)

    def _is_too_little(self, begun: Positions, latest: Positions, limit: ReadLimit) -> bool:
        if self._least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        waiting = sum(max(0, end - begun[partition]) for partition, end in latest.items())
        return waiting < self._least and time.monotonic() - self._last_batch_at < self._longest_wait_s
