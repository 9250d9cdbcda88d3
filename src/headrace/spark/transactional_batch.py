"""One micro-batch from its first row to its committed transaction.

On one machine tasks spool their record batches and the driver writes them.

On a cluster a small batch comes to the driver as encoded record batches and is written by it: a Spark job
that only writes costs more than the writing. A large batch is written by tasks, which compute and write in
one job. The choice depends on the number of input records and on the output of the last batches; if a task
has too much for the driver, it stops, and the batch is run again and written by tasks.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow.compute as pc

from headrace.client.errors import ProducerFenced
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError
from headrace.spark import progress
from headrace.spark.batch_tracing import input_traceparents
from headrace.spark.checkpoint import begin_at, count_records
from headrace.spark.errors import UnknownTopic
from headrace.spark.internals import run_job
from headrace.spark.progress import ProgressMarker, mark_batch
from headrace.spark.transactional_writer import (
    OVERFLOW,
    Membership,
    TaskInstructions,
    TransactionWriter,
    as_spooled,
    check_ran_once,
    read_spool,
    write_stage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.client.cluster import Cluster
    from headrace.client.shared_transaction import SharedTransaction
    from headrace.spark.checkpoint import Offsets, SparkCheckpoint
    from headrace.spark.options import ClusterConnection
    from headrace.spark.transactional_writer import Spool, Spooled
    from headrace.tracing import Tracer


FIRST_RECORD_BYTES: Final = 100
"""The assumed output size of an input record, before the first batch has been measured."""


class Forecast:
    """Predicts the output bytes of a batch from those of the last ones."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes_of_a_record = float(FIRST_RECORD_BYTES)

    def is_small(self, records: int) -> bool:
        """Whether the output of this many input records is expected to be within the driver's limit."""
        return records * self._bytes_of_a_record <= self._limit

    def learn(self, records: int, size: int) -> None:
        """Record the output size of a batch; one without input (windows that close) does not count."""
        if records:
            self._bytes_of_a_record = size / records


FRESH_S: Final = 10.0
"""How long the number of partitions is cached. Afterwards a topic with more partitions is written to all of
them: as with every Kafka producer, a key may then move to another partition."""


class OutputTopics:
    """Partition counts of a job's output topics, cached for a short time."""

    def __init__(self, cluster: Cluster, names: Sequence[str], *, fresh_s: float = FRESH_S) -> None:
        self._cluster = cluster
        self._names = tuple(names)
        self._fresh_s = fresh_s
        self._counts: dict[str, int] = {}
        self._asked_at = 0.0

    def partition_counts(self) -> dict[str, int]:
        """The number of partitions of each topic; raises `UnknownTopic` if one is missing."""
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
                f"the job writes to {', '.join(missing)}, and the cluster has no such topic. Create it "
                "first, with the number of partitions that it should have."
            )
        return {name: len(found[name].partitions) for name in self._names}


Deliver: TypeAlias = "Callable[[DataFrame, Batch], AbstractContextManager[DataFrame | None]]"
"""Delivers the rows of a batch to sinks other than topics; its block has the records for topics, if any."""
QUERY_ID: Final = "sql.streaming.queryId"
"""The local property with the query's id, which Spark sets on the thread that runs its batches."""


class CheckpointMismatch(HeadraceError):
    """A checkpoint that is behind the transactions of its own query."""


class Batch:
    """A micro-batch, as operators that add rows to it see it."""

    def __init__(
        self, batch_id: int, cluster: Cluster, checkpoint: SparkCheckpoint, find_start: Callable[[], Offsets]
    ) -> None:
        self.id = batch_id
        self.cluster = cluster
        """The connections of the query, only for the thread that runs its batches."""
        self.end = checkpoint.offsets(batch_id)
        """Where the batch ends in its topics: the offsets that follow its last records."""
        self.traceparent: str | None = None
        """The span of the batch; None without a tracer."""
        self._checkpoint = checkpoint
        self._find_start = find_start
        self._start: Offsets | None = None

    @property
    def watermark_ms(self) -> int:
        """The watermark of this batch, in milliseconds since 1970: Spark closes what ended by then."""
        return self._checkpoint.watermark_ms(self.id)

    @property
    def late_ms(self) -> int:
        """The watermark of the previous batch: rows for what ended by then are late."""
        return self._checkpoint.watermark_ms(self.id - 1) if self.id else 0

    @property
    def start(self) -> Offsets:
        """Where the batch begins."""
        if self._start is None:
            self._start = self._find_start()
        return self._start


@dataclass(kw_only=True)
class BatchRunner:
    """Runs the batches of one query, one after the other, on the thread that Spark calls with them."""

    cluster: Cluster
    link: ClusterConnection
    transaction: SharedTransaction
    job: str
    job_id: str
    place: str
    group: str | None
    outputs: OutputTopics
    checkpoint: SparkCheckpoint
    mark: ProgressMarker | None
    inline_bytes: int
    encode: Callable[[DataFrame], DataFrame]
    before: Callable[[Batch], None] | None
    extra_rows: Callable[[Batch], DataFrame | None] | None
    deliver: Deliver | None
    recover: Callable[[Batch, Exception], None]
    """Called when a batch failed: raises, unless a second run skips the records that it failed on."""
    reset_metrics: Callable[[], None]
    """Called before a batch is computed again: resets the metrics of its tasks."""
    steps: Callable[[str, int], None]
    written: Counter[str]
    """Committed records, by topic."""
    tracer: Tracer | None
    spool: Spool | None

    def __post_init__(self) -> None:
        self._forecast = Forecast(self.inline_bytes)
        self._last_end: tuple[int, Offsets] | None = None
        self._written: Counter[TopicPartition] = Counter()
        self._traceparent: str | None = None

    @contextmanager
    def _span(self, batch: Batch) -> Iterator[None]:
        """The span of a batch, with links to those of its input; nothing without a tracer."""
        if self.tracer is None:
            yield
            return
        attributes: dict[str, str | int] = {"headrace.job": self.job, "headrace.batch": batch.id}
        links = input_traceparents(self.cluster, batch.start, batch.end)
        with self.tracer.start(f"{self.job} batch", "consumer", links=links, attributes=attributes) as span:
            self._traceparent = batch.traceparent = span.traceparent
            try:
                yield
            finally:
                self._traceparent = None
                span.set(headrace_records_out=self._written.total())

    def run(self, encoded: DataFrame, batch_id: int) -> None:
        """Return when the batch is committed, or was before; an error aborts it."""
        context = encoded.sparkSession.sparkContext
        query = context.getLocalProperty(QUERY_ID)
        assert query is not None, "batches are run by Spark's streaming thread"
        batch = Batch(batch_id, self.cluster, self.checkpoint, lambda: self._start_of(batch_id))
        self.steps("begun", batch_id)
        if self.before is not None:
            self.before(batch)
        if self._is_marked(query, batch):
            TaskInstructions(partition_counts={}, discard=True).publish(context)
            self._recovering(run_job, encoded, batch)
        else:
            mark = ProgressMarker(
                query=query, batch=batch.id, offsets=batch.end, job_id=self.job_id, place=self.place
            )
            with self._span(batch):
                self._recovering(lambda rows: self._run_in_transaction(rows, batch, mark), encoded, batch)
        self._last_end = (batch_id, batch.end)

    def _recovering(self, run: Callable[[DataFrame], None], rows: DataFrame, batch: Batch) -> None:
        """Run the batch; if that fails, run it again without the records that it failed on.

        State that the first run wrote is discarded: the second one starts from the same version, as a task
        that Spark retries.
        """
        try:
            run(rows)
        except HeadraceError:
            raise
        except Exception as error:  # noqa: BLE001  what it is about is for the job to say
            self.recover(batch, error)
            self.reset_metrics()
            run(rows)

    def _is_marked(self, query: str, batch: Batch) -> bool:
        """Whether the batch was committed before; raises `CheckpointMismatch` if that cannot be decided."""
        mark = self.mark
        if mark is None or mark.query != query or mark.batch < batch.id:
            return False
        if mark.batch > batch.id or mark.offsets != batch.end:
            raise CheckpointMismatch(
                f"{self.checkpoint} is about to run batch {batch.id}, and the log says that batch "
                f"{mark.batch} of the same query was committed at {mark.offsets}. The checkpoint was "
                "restored from a copy, or lost its last files in a power cut: going on would skip or repeat "
                "rows. Start the job with a new checkpoint at the offsets named here."
            )
        return True

    def _run_in_transaction(self, encoded: DataFrame, batch: Batch, mark: ProgressMarker) -> None:
        self._written.clear()
        try:
            with self.spool or nullcontext():
                self._fill_transaction(encoded, batch, mark)
            self.transaction.commit()
        except ProducerFenced:
            raise  # the driver that fenced this one has aborted it
        except BaseException:
            self._abort()
            raise
        self.mark = mark
        for partition, records in self._written.items():
            self.written[partition.topic] += records
        self.steps("committed", batch.id)

    def _fill_transaction(self, encoded: DataFrame, batch: Batch, mark: ProgressMarker) -> None:
        records = count_records(batch.start, batch.end)
        output, size = self._output(encoded, batch, small=self._forecast.is_small(records))
        self._forecast.learn(records, size)
        self.steps("computed", batch.id)
        self._write([*output, *self._compute_extra(batch)], mark)
        self.steps("written", batch.id)
        if self.group is not None:
            self.transaction.commit_offsets(self.group, _positions(batch.end))
        self.steps("marked", batch.id)

    def _output(self, rows: DataFrame, batch: Batch, *, small: bool) -> tuple[list[Spooled], int]:
        if self.deliver is None:
            return self._compute(rows, small=small)
        # Before the transaction is open: it must not stay open while a sink is unavailable.
        with self.deliver(rows, batch) as records:
            return ([], 0) if records is None else self._compute(self.encode(records), small=small)

    def _compute_extra(self, batch: Batch) -> list[Spooled]:
        extra = None if self.extra_rows is None else self.extra_rows(batch)
        return [] if extra is None else self._compute(self.encode(extra), small=True)[0]

    def _compute(self, encoded: DataFrame, *, small: bool) -> tuple[list[Spooled], int]:
        """The record batches that the driver has to write (none if tasks wrote them), and their bytes."""
        counts = self.outputs.partition_counts()
        context = encoded.sparkSession.sparkContext
        if self.spool is not None:
            folder = self.spool.folder()
            self._instructions(counts, spool=str(folder)).publish(context)
            run_job(encoded)
            spooled = read_spool(folder)
            return spooled, sum(len(each.batch) for each in spooled)
        if small:
            self._instructions(counts, inline_bytes=self.inline_bytes).publish(context)
            table = encoded.toArrow()
            if not _overflowed(table):
                return list(as_spooled(table)), table["batch"].nbytes
            self.reset_metrics()
        self._instructions(counts).publish(context)
        return [], self._write_by_tasks(encoded, counts)

    def _instructions(self, counts: dict[str, int], **more: Any) -> TaskInstructions:
        return TaskInstructions(partition_counts=counts, traceparent=self._traceparent, **more)

    def _write_by_tasks(self, encoded: DataFrame, counts: dict[str, int]) -> int:
        """The number of bytes that the tasks have computed and written."""
        partitions = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
        self.transaction.add([*partitions, progress.PARTITION])
        context = encoded.sparkSession.sparkContext
        tasks = max(1, min(len(partitions), context.defaultParallelism))
        job = write_stage(encoded, link=self.link, membership=self._membership(), tasks=tasks)
        report = job.toArrow().to_pylist()
        for stage in {row["stage"] for row in report}:
            check_ran_once(context, stage)
        for row in report:
            self._written[TopicPartition(row["topic"], row["partition"])] += row["records"]
        return sum(row["bytes"] for row in report)

    def _write(self, batches: list[Spooled], mark: ProgressMarker) -> None:
        """Store the driver's record batches and the progress marker, with one request for each broker."""
        self.transaction.add([*{each.partition for each in batches}, progress.PARTITION])
        writer = TransactionWriter(self.cluster, self._membership())
        for each in batches:
            writer.write(*each)
        # After the membership was copied: it numbers what tasks have written.
        for each in batches:
            self._written[each.partition] += each.records
        writer.write(progress.PARTITION, 1, mark_batch(self.job, mark))
        writer.flush()

    def _membership(self) -> Membership:
        return Membership(self.transaction.transactional_id, self.transaction.identity, dict(self._written))

    def _abort(self) -> None:
        try:
            self.transaction.abort()
        except ProducerFenced:
            raise  # and this is why the batch failed, whatever its tasks report
        except HeadraceError:
            pass  # the broker is unavailable: the transaction is aborted when the job restarts

    def _start_of(self, batch_id: int) -> Offsets:
        first = self.checkpoint.first_offsets(batch_id)
        if self._last_end is not None and self._last_end[0] == batch_id - 1:
            return begin_at(first, self._last_end[1])
        return begin_at(first, self.checkpoint.offsets(batch_id - 1) if batch_id else {})


def _overflowed(table: pa.Table) -> bool:
    return bool(pc.any(pc.equal(table["records"], OVERFLOW)).as_py())


def _positions(offsets: Offsets) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
