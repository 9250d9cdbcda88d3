"""A step of a streaming plan that keeps state by key, with a kernel over Arrow columns.

```text
 rows ──▶ first (partial aggregation) ──▶ shuffle by key ──▶ kernel ──▶ results
                                                             ▲    │
                                           version N-1 of the state    ▼ version N
```

Spark's own state for Python costs a millisecond for each key; here a task calls its kernel once, with all
rows of its partition and the state of their keys (`headrace.state`). The step is a `mapInArrow` of the
plan, so Spark's own operators can precede and follow it. Tasks learn the number of their batch and its
watermarks from a local property (`BatchTimes`), because the plan of a query is the same in every batch.

The rows must come from the shuffle to the tasks directly or row by row: a task is identified by its number,
which differs after a `union` or a `coalesce`. Such a plan fails in its first batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import pyarrow as pa
from pyspark import TaskContext

from headrace.columns.keyed import Times
from headrace.errors import Misuse
from headrace.spark.arrow_step import ArrowStep, by_position, column_name
from headrace.state.files import state_files
from headrace.state.keyed import KeyedState
from headrace.state.operators import OperatorManifest, read_operator, write_operator

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.columns.joining import JoinKernel
    from headrace.columns.keyed import Kernel
    from headrace.spark.transactional_batch import Batch

PROPERTY: Final = "headrace.batch"
SLOT: Final = "_headrace_slot"
"""The column by which a task sees that it has the partition that its number says."""
ROWS_OF_A_BATCH: Final = 50_000

Batches: TypeAlias = Iterable[pa.RecordBatch]
First: TypeAlias = Callable[[Batches, Times], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimes:
    """The micro-batch that a task belongs to."""

    batch: int
    late_ms: int
    watermark_ms: int

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """What tasks have to know of a batch."""
        return cls(batch=batch.id, late_ms=batch.late_ms, watermark_ms=batch.watermark_ms)

    @property
    def times(self) -> Times:
        """The watermarks as kernels take them."""
        return Times(self.late_ms * 1000, self.watermark_ms * 1000)

    def publish(self, context: SparkContext) -> None:
        """Let the jobs that this thread starts from now on see them."""
        context.setLocalProperty(PROPERTY, json.dumps(asdict(self)))

    @classmethod
    def of_task(cls) -> Self:
        """Those of the task that asks."""
        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(PROPERTY)
        if text is None:
            raise Misuse("rows with windows that keep their own state can be computed only by a job.")
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedStage:
    """A kernel at work on the rows of a streaming DataFrame; `prepare` has to be called before each batch."""

    folder: str
    """Where the state is: one for each stage, in the checkpoint."""
    keys: tuple[str, ...]
    kernel: Kernel | JoinKernel
    schema: StructType
    """Of the kernel's output."""
    outline: str
    """What the stage computes: a job whose stage says something else cannot go on with the state."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns of the state that may be added and removed, with their types."""
    first: First | None = None
    """What tasks do with their rows before the shuffle."""
    first_schema: StructType | None = None
    behind_ms: int = 0
    """How far rows may be behind the watermark without being late: a join held them back."""
    task: type[KeyedTask] | None = None
    """What a task does, if it is not to gather and keep whole tables."""

    def step(self, frame: DataFrame) -> ArrowStep:
        """The kernel at work on each batch of `frame`."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        if self.first is not None and self.first_schema is not None:
            names = tuple(frame.columns)
            first = FirstTask(names=names, function=self.first, behind_us=1000 * self.behind_ms)
            frame = by_position(frame).mapInArrow(first, self.first_schema)
        partitions = self._partitions(frame)
        keys = [column_name(frame.columns.index(key)) for key in self.keys]
        shuffled = by_position(frame).repartition(partitions, *keys)
        task = (self.task or KeyedTask)(
            folder=self.folder,
            partitions=partitions,
            keys=self.keys,
            kernel=self.kernel,
            rows=arrow_schema(frame.schema),
            behind_us=1000 * self.behind_ms,
        )
        return ArrowStep.of(shuffled.select("*", F.spark_partition_id().alias(SLOT)), task, self.schema)

    def prepare(self, batch: Batch, frame: DataFrame) -> None:
        """Tell the tasks of a batch which one it is; `frame` is what `step` was given."""
        manifest = OperatorManifest(
            partitions=self._partitions(frame),
            outline=self.outline,
            columns=dict(self.columns),
            keys=self.keys,
        )
        write_operator(self.folder, manifest, batch=batch.id)
        BatchTimes.of(batch).publish(frame.sparkSession.sparkContext)

    def _partitions(self, frame: DataFrame) -> int:
        if not self.keys:
            return 1
        known = read_operator(self.folder)
        return shuffle_partitions(frame) if known is None else known.partitions


def shuffle_partitions(frame: DataFrame) -> int:
    """Into how many partitions rows are shuffled, where nothing says otherwise."""
    return int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTask:
    """What a task does before the shuffle, with batches that get their names back."""

    names: tuple[str, ...]
    function: First
    behind_us: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """What the function gives."""
        named = (batch.rename_columns(list(self.names)) for batch in batches)
        return self.function(named, BatchTimes.of_task().times.behind(self.behind_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTask:
    """The task's side of a stage."""

    folder: str
    partitions: int
    keys: tuple[str, ...]
    kernel: Any
    """A `Kernel`, or what a task of another kind calls."""
    rows: pa.Schema
    behind_us: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The output of one partition in one batch."""
        context = TaskContext.get()
        assert context is not None, "only tasks run stages"
        batch = BatchTimes.of_task()
        rows = self._gathered(list(batches), context.partitionId())
        for table in self._outcome(rows, batch, context):
            yield from table.combine_chunks().to_batches(max_chunksize=ROWS_OF_A_BATCH)

    def _outcome(self, rows: pa.Table, batch: BatchTimes, context: TaskContext) -> Iterable[pa.Table]:
        """What the kernel makes of the rows; the state is written before that is asked for."""
        state = KeyedState(
            files=state_files(self.folder).child(str(context.partitionId())),
            keys=self.keys,
            kernel=self.kernel,
        )
        return (state.advance(batch.batch, rows, batch.times.behind(self.behind_us)),)

    def _gathered(self, batches: Sequence[pa.RecordBatch], number: int) -> pa.Table:
        slots = {batch[SLOT][0].as_py() for batch in batches if batch.num_rows}
        if number >= self.partitions or slots - {number}:
            raise Misuse(
                "the rows of a window that keeps its own state were put together with others (union) or into "
                "fewer tasks (coalesce): do that before the window, or with another job that reads its topic."
            )
        if not batches:
            return self.rows.empty_table()
        table = pa.Table.from_batches(batches).drop_columns([SLOT])
        return table.rename_columns(self.rows.names).cast(self.rows)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Arrow has them in tasks."""
    from pyspark.sql.pandas.types import to_arrow_schema

    made = to_arrow_schema(schema, timezone="UTC")
    # Whether a column may be null differs from plan to plan: state that was kept has to fit all the same.
    return pa.schema([pa.field(field.name, field.type) for field in made])
