"""The first half of the transactional sink: rows into record batches, inside the streaming plan.

The stage is part of the plan that Spark runs in every micro-batch, so what changes from batch to batch cannot
be in its closure. It comes to the tasks as a local property of the job, `TaskInstructions`: how many
partitions the topics have now, how much a task may pass to the driver, and whether there is anything to pass.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pyarrow as pa
from pyspark import TaskContext

from headrace.columns.encoding import Encoder
from headrace.spark.arrow_step import chained
from headrace.spark.transactional_spool import write_spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark import SparkContext
    from pyspark.sql import DataFrame

    from headrace.columns.encoding import Encoded
    from headrace.spark.arrow_step import ArrowFunction

PROPERTY: Final = "headrace.orders"
SCHEMA: Final = "topic string, partition int, slot int, position long, records int, batch binary"
"""`slot` numbers the partitions of all topics; `position` orders the batches of one partition."""
OVERFLOW: Final = -1
"""The number of records in the row that a task hands over instead of more than the driver wants."""

_ARROW = pa.schema(
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
    """What the encoding tasks of one job are to do."""

    partition_counts: Mapping[str, int]
    inline_bytes: int | None = None
    """A task that has more than this gives up; None when it is to go on however much it has."""
    spool: str | None = None
    """The folder for the batches, where they are not to be rows of the stage."""
    discard: bool = False
    """Take all rows, for what they do to state and watermark, and give nothing."""

    def publish(self, context: SparkContext) -> None:
        """Let the jobs that this thread starts from now on see these orders."""
        context.setLocalProperty(PROPERTY, json.dumps(asdict(self)))

    @classmethod
    def of_task(cls) -> Self | None:
        """The orders of the task that asks; None when its job was given none."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        return None if text is None else cls(**json.loads(text))


class Row(NamedTuple):
    """A record batch as it leaves the stage."""

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

    `through` are functions by which the tasks make records of the rows first. `partition_counts` serves where
    a job has no orders.
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
            # What was handed over already is thrown away: the batch runs again with other orders.
            yield to_arrow([Row(None, None, 0, 0, OVERFLOW, None)])
            return
        yield to_arrow(rows.number(encoded))


def to_arrow(rows: Iterable[Row]) -> pa.RecordBatch:
    """The rows as Spark expects them from the stage."""
    columns: Any = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _encode(batches: Iterable[pa.RecordBatch], encoder: Encoder) -> Iterator[list[Encoded]]:
    for rows in batches:
        if encoded := encoder.encode(rows):
            yield encoded
    if encoded := encoder.flush():
        yield encoded


class _Rows:
    """Numbers the batches of one task: those of a later task follow those of an earlier one."""

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
