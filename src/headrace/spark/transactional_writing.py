"""The second half of the transactional sink: record batches into the open transaction.

Where driver and tasks share a machine, and wherever they are few, the driver writes them. On a cluster many
of them are sent to the tasks by the partitions they are for, so that each partition has one writer, and one
sequence.

A broker knows a batch that it has had by its sequence, not by its bytes. A writing task that ran twice in one
transaction could compute other rows the second time and lose them without a word; so a second attempt
refuses to write, and the batch is aborted and run again as a whole.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.columns.encoding import stamp
from headrace.errors import HeadraceError
from headrace.spark.transactional_spool import Spooled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from headrace.client.cluster import Cluster
    from headrace.client.shared_transaction import ProducerIdentity
    from headrace.protocol.compression import Bytes
    from headrace.spark.cluster_connection import ClusterConnection

REPORT: Final = "topic string, partition int, records long, bytes long, stage int"
"""What the writing tasks tell the driver: one row for each partition that they wrote to."""
LISTENERS_MS: Final = 60_000
"""How long the driver waits to hear of everything that happened to a job; it takes milliseconds."""

_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("stage", pa.int32()),
    ]
)


class WrittenTwice(HeadraceError):
    """A writing task that Spark started a second time inside one transaction."""


class Membership(NamedTuple):
    """What a writer must know to be one of those who write a transaction."""

    transactional_id: str
    identity: ProducerIdentity
    sequences: Mapping[TopicPartition, int]
    """How many records of this transaction each partition has already."""


class TransactionWriter:
    """Stamps record batches with the identity of a transaction and writes them, each partition in order."""

    def __init__(self, cluster: Cluster, membership: Membership) -> None:
        self._producer = BatchProducer(cluster, transactional_id=membership.transactional_id)
        self._identity = membership.identity
        self._before = membership.sequences
        self.records: Counter[TopicPartition] = Counter()
        self.sizes: Counter[TopicPartition] = Counter()

    def write(self, partition: TopicPartition, records: int, batch: Bytes) -> None:
        """Take one batch of `records` records."""
        sequence = self._before.get(partition, 0) + self.records[partition]
        stamped = stamp(
            batch,
            producer_id=self._identity.producer_id,
            epoch=self._identity.epoch,
            base_sequence=sequence,
        )
        self._producer.send(partition, stamped)
        self.records[partition] += records
        self.sizes[partition] += len(batch)

    def flush(self) -> None:
        """Return when everything that was taken is stored."""
        self._producer.flush()


def as_spooled(rows: pa.RecordBatch | pa.Table) -> Iterator[Spooled]:
    """The record batches in rows of the encoding stage."""
    columns = (rows[name].to_pylist() for name in ("topic", "partition", "records", "batch"))
    for topic, partition, records, batch in zip(*columns, strict=True):
        yield Spooled(TopicPartition(topic, partition), records, batch)


def write_stage(
    encoded: DataFrame, *, link: ClusterConnection, membership: Membership, tasks: int
) -> DataFrame:
    """A job that writes the encoded batches in so many tasks; its rows, for each partition, are `REPORT`."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_batches(batches, link, membership)

    # Sorting keeps the order that the rows had. It also means that a task has read all of its input before it
    # writes the first batch: input that cannot be fetched fails it while nothing is written yet.
    return (
        encoded.repartitionById(tasks, "slot")
        .sortWithinPartitions("slot", "position")
        .mapInArrow(write, REPORT)
    )


def write_batches(
    batches: Iterable[pa.RecordBatch], link: ClusterConnection, membership: Membership
) -> Iterator[pa.RecordBatch]:
    """The task's side of the stage."""
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    if context.attemptNumber() > 0:
        raise WrittenTwice(
            f"task {context.partitionId()} of stage {context.stageId()} failed while it wrote, and Spark "
            "started it again. What it had written cannot be told from what it would write now: the batch is "
            "aborted and runs again as a whole. The first failure of this task says why."
        )
    writer = TransactionWriter(link.cluster(), membership)
    for rows in batches:
        for spooled in as_spooled(rows):
            writer.write(*spooled)
    writer.flush()
    yield _report(writer, context.stageId())


def check_ran_once(context: SparkContext, stage: int) -> None:
    """Pass when no task of the stage can have written twice.

    A task whose input vanished makes Spark run its stage again, and the tasks of the new run count as first
    attempts: they do not know of the others. The driver does, once its listeners have heard of everything.
    """
    scheduler: Any = context._jsc
    scheduler.sc().listenerBus().waitUntilEmpty(LISTENERS_MS)
    known = context.statusTracker().getStageInfo(stage)
    if known is None or known.currentAttemptId > 0:
        raise WrittenTwice(
            f"stage {stage} was run more than once while it wrote: an executor was lost, or its shuffle "
            "files were. The batch is aborted and runs again as a whole."
        )


def _report(writer: TransactionWriter, stage: int) -> pa.RecordBatch:
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "records": records,
            "bytes": writer.sizes[partition],
            "stage": stage,
        }
        for partition, records in writer.records.items()
    ]
    return pa.RecordBatch.from_pylist(rows, _ARROW)
