"""A streaming query into topics, exactly once: each micro-batch is one Kafka transaction.

    sink = TransactionalSink(spark, "127.0.0.1:9092", job="revenue", group="revenue", topics=["revenue"])
    query = sink.start(rows, checkpoint="state/revenue")

The transaction of batch N has its output, the positions in its input (for the consumer group that lag tools
show), and a progress marker for N. Spark repeats a batch that it has not recorded as committed, with the same
input. If the marker exists, so does the output: the batch runs for its state and its watermark, and its
output is discarded. If the marker does not exist, readers of committed records see nothing of the batch.

Opening the transactional id, `headrace.<job>`, fences the driver that had it before. A driver that seemed
dead and continues can write nothing, and ends with an error.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerFenced
from headrace.client.shared_transaction import SharedTransaction
from headrace.errors import HeadraceError
from headrace.spark.checkpoint import SparkCheckpoint
from headrace.spark.errors import BadColumns
from headrace.spark.options import ClusterConnection
from headrace.spark.progress import create_progress_topic, read_marker
from headrace.spark.transactional_batch import Batch, BatchRunner, Deliver, OutputTopics
from headrace.spark.transactional_writer import Spool, encode_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from headrace.spark.arrow_step import ArrowFunction
    from headrace.tracing import Tracer

__all__ = ["Batch", "SinkFenced", "TransactionalSink"]

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The longest that Kafka allows by default: tasks compute while their transaction is open. A restarted job
aborts its open transaction at once; one that dies and is not restarted blocks readers for this long."""
INLINE_BYTES: Final = 8 << 20
"""The most that the driver of a cluster writes itself; tasks write larger batches."""
SPOOL: Final = "spool"
"""The folder of the spool, in the checkpoint's folder."""
COLUMNS: Final = ("key", "value", "headers", "topic", "partition")


class SinkFenced(HeadraceError):
    """Another driver runs the same job now."""


class TransactionalSink:
    """The exactly-once output of one job.

    `topics` are all topics that may be written to; rows without a column `topic` go to the first. `group` is
    the consumer group that shows the job's progress. `job_id` and `place` name the folder of the checkpoint
    in progress markers. `before` is called before a batch is computed, on the thread that computes it, and
    `extra_rows` may add rows to a batch once its own are computed; they are of the same transaction. With
    `deliver` the query may have any rows: it is a context manager that gets each computed batch first, and in
    whose block the records for the topics are read. `recover` is called when a batch fails: it returns if a
    second run of the batch skips the records that it failed on, and raises the error otherwise.
    `reset_metrics` is called before tasks of a batch are run again. `spool` says whether driver and tasks
    share a file system, as they do where Spark runs on one machine. Each batch runs inside the block of the
    context manager `around`. `steps` is called with the name of each completed step and the number of the
    batch: begun, computed, written, marked, committed. `written` counts the committed records of each topic.
    `tracer` gets a span for each batch.

    One sink runs one query at a time. `start` may be called again when the query has ended.
    """

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        job: str,
        group: str | None,
        topics: Sequence[str],
        job_id: str = "",
        place: str = "",
        before: Callable[[Batch], None] | None = None,
        extra_rows: Callable[[Batch], DataFrame | None] | None = None,
        deliver: Deliver | None = None,
        recover: Callable[[Batch, Exception], None] | None = None,
        reset_metrics: Callable[[], None] | None = None,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
        steps: Callable[[str, int], None] | None = None,
        written: Counter[str] | None = None,
        tracer: Tracer | None = None,
        compression: str = "none",
        inline_bytes: int = INLINE_BYTES,
        spool: bool | None = None,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._spark = spark
        self._link = ClusterConnection(bootstrap=bootstrap, **(client_options or {}))
        self._job = job
        self._group = group
        self._topics = tuple(topics)
        self._job_id = job_id
        self._place = place
        self._before = before
        self._extra_rows = extra_rows
        self._deliver = deliver
        self._recover = recover
        self._reset_metrics = reset_metrics
        self._around = around
        self._steps = steps or _ignore
        self._tracer = tracer
        self._records_written = Counter() if written is None else written
        self._compression = compression
        self._inline_bytes = inline_bytes
        self._spools = str(spark.sparkContext.master).startswith("local") if spool is None else spool
        self._timeout_ms = transaction_timeout_ms
        # Not the one that tasks in this process share: a cluster is for one thread.
        self._cluster = Cluster.of(bootstrap, client_id=self._link.client_id, timeout_s=self._link.timeout_s)
        self._runner: BatchRunner | None = None

    @property
    def transactional_id(self) -> str:
        """The name under which Kafka knows the job's transactions."""
        return f"headrace.{self._job}"

    def start(
        self,
        rows: DataFrame,
        *,
        checkpoint: str,
        trigger: Mapping[str, Any] | None = None,
        query_name: str | None = None,
        output_mode: str = "append",
        through: Sequence[ArrowFunction] = (),
    ) -> StreamingQuery:
        """The running query that writes `rows`, whose columns are value and, optionally, others of `COLUMNS`.

        Rows with other columns are converted by `through`: functions that tasks apply to Arrow batches, one
        after the other. They all go to the first topic. With `deliver` the rows may have any columns: those
        of the records that it returns count.

        Another driver of the same job is fenced, also if the query then fails to start. `trigger` has the
        arguments of Spark's `DataStreamWriter.trigger`.
        """
        if not through and self._deliver is None:
            _check_columns(rows)
        outputs = OutputTopics(self._cluster, self._topics)
        create_progress_topic(self._cluster)
        files = SparkCheckpoint(checkpoint)
        self._runner = self._open(files, outputs)
        encoded = self._encode(rows, outputs, through) if self._deliver is None else rows
        writer = encoded.writeStream.foreachBatch(self._process).outputMode(output_mode)
        writer = writer.option("checkpointLocation", files.uri)
        if trigger:
            writer = writer.trigger(**trigger)
        if query_name:
            writer = writer.queryName(query_name)
        return writer.start()

    def close(self) -> None:
        """Close the connections; the query has ended."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, checkpoint: SparkCheckpoint, outputs: OutputTopics) -> BatchRunner:
        transaction = SharedTransaction.open(
            self._cluster, self.transactional_id, timeout_ms=self._timeout_ms
        )
        return BatchRunner(
            cluster=self._cluster,
            link=self._link,
            transaction=transaction,
            job=self._job,
            job_id=self._job_id,
            place=self._place,
            group=self._group,
            outputs=outputs,
            checkpoint=checkpoint,
            mark=read_marker(self._cluster, self._job),
            inline_bytes=self._inline_bytes,
            encode=lambda extra: self._encode(extra, outputs),
            before=self._before,
            extra_rows=self._extra_rows,
            deliver=self._deliver,
            recover=self._recover or _reraise,
            reset_metrics=self._reset_metrics or (lambda: None),
            steps=self._steps,
            written=self._records_written,
            tracer=self._tracer,
            spool=Spool(checkpoint.local / SPOOL) if self._spools and checkpoint.local else None,
        )

    def _encode(
        self, rows: DataFrame, outputs: OutputTopics, through: Sequence[ArrowFunction] = ()
    ) -> DataFrame:
        names_topics = "topic" in rows.columns and not through
        return encode_stage(
            rows,
            topic=None if names_topics else self._topics[0],
            partition_counts=outputs.partition_counts(),
            compression=self._compression,
            through=through,
        )

    def _process(self, encoded: DataFrame, batch_id: int) -> None:
        assert self._runner is not None
        try:
            with self._around():
                self._runner.run(encoded, batch_id)
        except ProducerFenced as fault:
            raise SinkFenced(
                f"the job {self._job!r} is run by another driver now, or batch {batch_id} took longer than "
                f"{self._timeout_ms / 1000:g} s: {fault} Run each job once."
            ) from fault


def _check_columns(rows: DataFrame) -> None:
    unknown = [name for name in rows.columns if name not in COLUMNS]
    if unknown or "value" not in rows.columns:
        what = f"no column {', '.join(unknown)}" if unknown else "a column value"
        raise BadColumns(f"rows for topics must have {what}; the columns may be {', '.join(COLUMNS)}")


def _reraise(_batch: Batch, error: Exception) -> None:
    raise error


def _ignore(_step: str, _batch: int) -> None:
    pass
