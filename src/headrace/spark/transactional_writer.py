"""The stages of the transactional sink: rows into record batches, and those into the transaction.

The encoding stage is part of the plan that Spark runs in every micro-batch, so what changes from batch to
batch cannot be in its closure. Tasks read it from a local property of the job, `TaskInstructions`: how many
partitions the topics have now, how many bytes a task may pass to the driver, and whether there is anything to
pass.

Where driver and tasks share a machine, record batches are spooled as files. Each task writes what it has
encoded into its own file; the driver reads the files when the job is done and is the only writer of the
transaction, whatever the size of a micro-batch. No shuffle collects the batches of a partition, a task that
Spark repeats does no harm, and a small batch is faster too: Spark's own `collect` takes 40 ms more. A file is
written under a temporary name and renamed when the task is done. It ends with an index: which batch is for
which partition, and the size of the index.

On a cluster the driver writes small batches. Large ones are sent to tasks by partition, so that each
partition has one writer, and one sequence. A broker detects a duplicate batch by its sequence, not by its
bytes. A writing task that ran twice in one transaction could compute other rows the second time and silently
lose them; so a second attempt refuses to write, and the batch is aborted and run again as a whole.
"""

from __future__ import annotations

import itertools
import json
import mmap
import shutil
import struct
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark import TaskContext

from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.columns.encoding import Encoder, stamp
from headrace.errors import HeadraceError
from headrace.spark.arrow_step import chained
from headrace.spark.batch_tracing import with_traceparent
from headrace.spark.internals import java_context_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from headrace.client.cluster import Cluster
    from headrace.client.shared_transaction import ProducerIdentity
    from headrace.columns.encoding import Encoded
    from headrace.protocol.compression import Bytes
    from headrace.spark.arrow_step import ArrowFunction
    from headrace.spark.options import ClusterConnection


TRAILER: Final = struct.Struct(">q")
"""The size of the index."""


class Spooled(NamedTuple):
    """A record batch and its partition."""

    partition: TopicPartition
    records: int
    batch: Bytes


class Spool:
    """The files of one micro-batch: a folder for each of its jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = itertools.count()

    def __enter__(self) -> Self:
        self._remove()  # left by a driver that was killed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def folder(self) -> Path:
        """A folder for the tasks of a job."""
        folder = self._folder / str(next(self._jobs))
        folder.mkdir(parents=True)
        return folder

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)


def read_spool(folder: Path) -> list[Spooled]:
    """All batches of a job, in the order of its tasks and of the rows in each of them."""
    paths = sorted(folder.glob("*.spool"), key=lambda path: int(path.stem))
    return [spooled for path in paths for spooled in _read(path)]


def write_spool(folder: Path, task: int, attempt: int, encoded: Iterable[Iterable[Encoded]]) -> None:
    """Write the record batches of a task into its file."""
    path = folder / f"{task}.{attempt}.part"
    index: list[tuple[str, int, int, int]] = []
    with path.open("wb") as file:
        for batches in encoded:
            index += [(each.topic, each.partition, each.records, file.write(each.batch)) for each in batches]
        listed = json.dumps(index).encode()
        file.write(listed)
        file.write(TRAILER.pack(len(listed)))
    path.rename(folder / f"{task}.spool")


def _read(path: Path) -> Iterator[Spooled]:
    with path.open("rb") as file:
        # Not closed: the memory map is freed with the last batch that refers to it.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    end = len(content) - TRAILER.size
    (size,) = TRAILER.unpack_from(content, end)
    at = 0
    for topic, partition, records, length in json.loads(bytes(content[end - size : end])):
        yield Spooled(TopicPartition(topic, partition), records, content[at : at + length])
        at += length


PROPERTY: Final = "headrace.orders"
SCHEMA: Final = "topic string, partition int, slot int, position long, records int, batch binary"
"""`slot` numbers the partitions of all topics; `position` orders the batches of one partition."""
OVERFLOW: Final = -1
"""The number of records in the row that a task emits instead of more bytes than the driver's limit."""

_ENCODED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("slot", pa.int32()),
        ("position", pa.int64()),
        ("records", pa.int32()),
        ("batch", pa.binary()),
    ]
)
_BATCHES_OF_A_TASK = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstructions:
    """Instructions for the encoding tasks of one job."""

    partition_counts: Mapping[str, int]
    inline_bytes: int | None = None
    """A task with more bytes than this stops; None for no limit."""
    spool: str | None = None
    """The folder of the spool; None if the record batches are rows of the stage."""
    discard: bool = False
    """Whether to discard all output: the batch runs only for its state and watermark."""
    traceparent: str | None = None
    """The span of the batch, which its records carry."""
    staged: Mapping[str, str | None] | None = None
    """Where tasks stage rows for sinks: `folder` for rows, `tokens` for tokens, if these are files too."""

    def publish(self, context: SparkContext) -> None:
        """Publish the instructions to the jobs that this thread starts afterwards."""
        context.setLocalProperty(PROPERTY, json.dumps(asdict(self)))

    @classmethod
    def of_task(cls) -> Self | None:
        """The instructions of the current task, or None."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        return None if text is None else cls(**json.loads(text))


class Row(NamedTuple):
    """A record batch, as a row that the stage emits."""

    topic: str | None
    partition: int | None
    slot: int
    position: int
    records: int
    batch: bytes | None


def encode_stage(
    rows: DataFrame,
    *,
    topic: str | None,
    partition_counts: Mapping[str, int],
    compression: str = "none",
    through: Sequence[ArrowFunction] = (),
) -> DataFrame:
    """The rows as record batches for their partitions, with the columns of `SCHEMA`.

    `through` are functions that convert the rows to records first. `partition_counts` is used if a job has no
    instructions.
    """
    defaults = TaskInstructions(partition_counts=dict(partition_counts))

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        records = chained(through, batches)
        return encode_rows(
            records, TaskInstructions.of_task() or defaults, topic=topic, compression=compression
        )

    return rows.mapInArrow(encode, SCHEMA)


def encode_rows(
    batches: Iterable[pa.RecordBatch], orders: TaskInstructions, *, topic: str | None, compression: str
) -> Iterator[pa.RecordBatch]:
    """The task's side of the stage."""
    if orders.discard:
        for _ in batches:
            pass
        return
    if orders.traceparent is not None:
        batches = map(partial(with_traceparent, orders.traceparent), batches)
    encodings = _encode(batches, Encoder(orders.partition_counts, topic=topic, compression=compression))
    if orders.spool is not None:
        task = TaskContext.get()
        assert task is not None, "only tasks spool"
        write_spool(Path(orders.spool), task.partitionId(), task.attemptNumber(), encodings)
        return
    size = 0
    rows = _Rows(orders.partition_counts)
    for encoded in encodings:
        size += sum(len(each.batch) for each in encoded)
        if orders.inline_bytes is not None and size > orders.inline_bytes:
            # What was emitted already is discarded: the batch runs again with other instructions.
            yield to_arrow([Row(None, None, 0, 0, OVERFLOW, None)])
            return
        yield to_arrow(rows.number(encoded))


def to_arrow(rows: Iterable[Row]) -> pa.RecordBatch:
    """The rows as Spark expects them from the stage."""
    columns: Any = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ENCODED, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ENCODED)


def _encode(batches: Iterable[pa.RecordBatch], encoder: Encoder) -> Iterator[list[Encoded]]:
    for rows in batches:
        if encoded := encoder.encode(rows):
            yield encoded
    if encoded := encoder.flush():
        yield encoded


class _Rows:
    """Numbers the batches of one task, after those of all tasks with lower numbers."""

    def __init__(self, partition_counts: Mapping[str, int]) -> None:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        self._positions = itertools.count(task * _BATCHES_OF_A_TASK)
        firsts = itertools.accumulate(partition_counts.values(), initial=0)
        self._first_slots = dict(zip(partition_counts, firsts, strict=False))

    def number(self, encoded: Iterable[Encoded]) -> list[Row]:
        return [
            Row(
                each.topic,
                each.partition,
                self._first_slots[each.topic] + each.partition,
                next(self._positions),
                each.records,
                each.batch,
            )
            for each in encoded
        ]


REPORT: Final = "topic string, partition int, records long, bytes long, stage int"
"""The report of a writing task to the driver: one row for each partition that it wrote to."""
LISTENERS_MS: Final = 60_000
"""How long the driver waits for Spark's listener events of a job; that usually takes milliseconds."""

_REPORT = pa.schema(
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
    """What a writer needs to take part in a transaction."""

    transactional_id: str
    identity: ProducerIdentity
    sequences: Mapping[TopicPartition, int]
    """The number of records of this transaction that each partition already has."""


class TransactionWriter:
    """Stamps record batches with the identity of a transaction and writes them, each partition in order."""

    def __init__(self, cluster: Cluster, membership: Membership) -> None:
        self._producer = BatchProducer(cluster, transactional_id=membership.transactional_id)
        self._identity = membership.identity
        self._before = membership.sequences
        self.records: Counter[TopicPartition] = Counter()
        self.sizes: Counter[TopicPartition] = Counter()

    def write(self, partition: TopicPartition, records: int, batch: Bytes) -> None:
        """Add one batch of `records` records."""
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
        """Return when all added batches are stored."""
        self._producer.flush()


def as_spooled(rows: pa.RecordBatch | pa.Table) -> Iterator[Spooled]:
    """The record batches in rows of the encoding stage."""
    columns = (rows[name].to_pylist() for name in ("topic", "partition", "records", "batch"))
    for topic, partition, records, batch in zip(*columns, strict=True):
        yield Spooled(TopicPartition(topic, partition), records, batch)


def write_stage(
    encoded: DataFrame, *, link: ClusterConnection, membership: Membership, tasks: int
) -> DataFrame:
    """A job that writes the encoded batches with `tasks` tasks; its rows, one per partition, are `REPORT`."""

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
            "started it again. What it wrote cannot be distinguished from what it would write now: the batch "
            "is aborted and runs again as a whole. The first failure of this task says why."
        )
    writer = TransactionWriter(link.cluster(), membership)
    for rows in batches:
        for spooled in as_spooled(rows):
            writer.write(*spooled)
    writer.flush()
    yield _report(writer, context.stageId())


def check_ran_once(context: SparkContext, stage: int) -> None:
    """Raise `WrittenTwice` if a task of the stage may have written twice.

    If the input of a task is lost, Spark runs its stage again, and the tasks of the new run count as first
    attempts: they cannot detect the others. The driver can, once its listeners have received all events.
    """
    java_context_of(context).sc().listenerBus().waitUntilEmpty(LISTENERS_MS)
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
    return pa.RecordBatch.from_pylist(rows, _REPORT)
