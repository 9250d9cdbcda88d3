"""The outputs of a job that has more than one topic: each micro-batch is computed once, and written to each.

Tasks stage the rows for all sinks in one pass, as a step of the plan. The driver gets the tokens and commits
them to the sinks, each with its own batch marker. Then comes the transaction of the log with its records, the
dead letters, the offsets and the progress marker. A crash in between repeats the batch: sinks that have it
skip it, but its rows are computed all the same, since operators need the state of every batch.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext

from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.folders import local_path
from headrace.sinks.delivery import SinkDelivery, read_generation
from headrace.sinks.sink import SinkContext, StagingContext
from headrace.sinks.staging import INLINE_BYTES, TOKENS, RowStaging, StagingFolder, read_tokens
from headrace.spark.arrow_step import by_position, chained
from headrace.spark.internals import run_job
from headrace.spark.session import is_on_this_machine
from headrace.spark.transactional_writer import TaskInstructions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.folders import Folder
    from headrace.sinks.delivery import RejectedRow
    from headrace.sinks.sink import Sink
    from headrace.sinks.staging import StagedBatch
    from headrace.spark.arrow_step import ArrowFunction
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.job import Job
    from headrace.streams.report import JobMetrics

LETTER: Final = "topic string, value binary, headers array<struct<key: string, value: binary>>"


STAGED: Final = ".staged"
"""The folder of staged rows, in that of the job's outputs."""
FOLDER_OF_TASKS: Final = "tasks"
STAGED_COLUMNS: Final = "task int, rows long, content binary, file string, tokens string"
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
DRIVER_BYTES: Final = 64 << 20
"""The most bytes of rows that the tokens of a batch bring to the driver, unless it has very many tasks."""


class Outputs:
    """The outputs of one run of a job."""

    def __init__(
        self,
        job: Job,
        spark: SparkSession,
        schema: StructType,
        *,
        folder: Folder,
        state: Path,
        metrics: JobMetrics,
        pause: Callable[[float], bool],
        steps: Callable[[str, int], None],
    ) -> None:
        self._job = job
        self._spark = spark
        self._steps = steps
        self._letters: list[RejectedRow] = []
        self._metrics = metrics
        contexts = _contexts(job, schema, folder, state)
        self._deliveries = [
            SinkDelivery(sink, context, on_status=self._tell, wait=pause) for sink, context in contexts
        ]
        if contexts:
            self._folder = StagingFolder(f"{folder}/{STAGED}")
            self._staging = _staging(job.into.sinks, contexts[0][1], spark)

    def staged(self, planned: PlannedRows) -> DataFrame:
        """The tokens of planned rows, which the tasks that compute the rows return."""
        step = planned.step
        before = by_position(planned.frame) if step is None else step.before
        return _stage(before, self._staging, () if step is None else (step.function,))

    @contextmanager
    def deliver(self, rows: DataFrame, batch: Batch) -> Iterator[DataFrame | None]:
        """Write the rows of a batch to all sinks; the block has the records for topics, if there are any."""
        self._letters = []
        if not self._job.into.topics:
            self._to_sinks(self.staged(PlannedRows(frame=rows)), batch)
            yield None
            return
        rows.persist()
        try:
            if self._deliveries:
                self._to_sinks(self.staged(PlannedRows(frame=rows)), batch)
            yield self._job.into.records(rows)
        finally:
            rows.unpersist()

    @contextmanager
    def deliver_staged(self, tokens: DataFrame, batch: Batch) -> Iterator[None]:
        """Write the rows of a batch whose plan ends with `staged`."""
        self._letters = []
        self._to_sinks(tokens, batch)
        yield None

    def _to_sinks(self, tokens: DataFrame, batch: Batch) -> None:
        try:
            staged = replace(self._run(tokens, batch.id), traceparent=batch.traceparent)
            self._steps("staged", batch.id)
            for delivery in self._deliveries:
                rejected = delivery.deliver(batch.id, staged)
                self._metrics.rows_out[delivery.target] += len(staged) - len(rejected)
                self._letters += rejected
        finally:
            self._folder.delete()
        self._steps("delivered", batch.id)

    def _run(self, tokens: DataFrame, batch: int) -> StagedBatch:
        """Let the tasks stage the rows of a batch."""
        context = self._spark.sparkContext
        folder = self._folder.of_batch(batch)
        files = None
        if folder is not None and is_on_this_machine(str(context.master)):
            files = local_path(folder)
        instructions = {"folder": folder, "tokens": None if files is None else str(files / FOLDER_OF_TASKS)}
        TaskInstructions(partition_counts={}, staged=instructions).publish(context)
        if files is None:
            return read_tokens(tokens.toArrow(), self._staging.context.schema)
        run_job(tokens)  # without Spark's `collect`, which takes longer than a small batch
        found = [_read_tokens(path) for path in (files / FOLDER_OF_TASKS).glob("*.arrow")]
        return read_tokens(pa.concat_tables([TOKENS.empty_table(), *found]), self._staging.context.schema)

    def letters(self, batch: Batch) -> DataFrame | None:  # noqa: ARG002  the one that was delivered just now
        """The dead letters of the batch: the rows that targets rejected."""
        if not self._letters:
            return None
        self._metrics.refused += len(self._letters)
        records = [_record(letter, self._job.dead_topic) for letter in self._letters]
        return self._spark.createDataFrame(records, LETTER)

    def _tell(self, held_up: str) -> None:
        self._metrics.held_up = held_up

    def close(self) -> None:
        """Close the connections."""
        self._tell("")
        for delivery in self._deliveries:
            delivery.close()


def _staging(sinks: tuple[Sink, ...], context: SinkContext, spark: SparkSession) -> RowStaging:
    tasks = max(spark.sparkContext.defaultParallelism, int(spark.conf.get(SHUFFLE_PARTITIONS) or 1))
    return RowStaging.of(
        sinks,
        StagingContext(job=context.job, generation=context.generation, schema=context.schema),
        inline_bytes=min(INLINE_BYTES, DRIVER_BYTES // tasks),
    )


def _stage(rows: DataFrame, staging: RowStaging, through: Sequence[ArrowFunction]) -> DataFrame:
    """The rows as tokens; `through` are functions that are applied to them first."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return stage_rows(chained(through, batches), staging)

    return rows.mapInArrow(stage, STAGED_COLUMNS)


def stage_rows(batches: Iterable[pa.RecordBatch], staging: RowStaging) -> Iterator[pa.RecordBatch]:
    """The task's side: the tokens, or nothing if they are files."""
    orders, task = TaskInstructions.of_task(), TaskContext.get()
    if orders is None or orders.discard or orders.staged is None or task is None:
        for _ in batches:  # a batch that is in the log already: only its state is missing
            pass
        return
    tokens = staging.stage(batches, task=task.partitionId(), folder=orders.staged["folder"])
    if orders.staged["tokens"] is None:
        yield from tokens
        return
    listed = list(tokens)
    if listed:
        _write_tokens(Path(orders.staged["tokens"]), task.partitionId(), listed)


def _write_tokens(folder: Path, task: int, tokens: list[pa.RecordBatch]) -> None:
    """Replace the file of a task: each attempt writes all of it."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f"{task}.{uuid4().hex}"
    with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_stream(file, TOKENS) as out:
        for each in tokens:
            out.write_batch(each)
    aside.replace(folder / f"{task}.arrow")


def _read_tokens(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()


def _contexts(job: Job, schema: StructType, folder: Folder, state: Path) -> list[tuple[Sink, SinkContext]]:
    if not job.into.sinks:
        return []
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise Misuse(f"job {job.name!r}: its rows have two columns named {twice[0]!r}: rename one.")
    context = SinkContext(
        job=job.full_name,
        generation=read_generation(folder),
        schema=_arrow_schema(schema),
        folder=folder,
        state=state,
    )
    return [(sink, replace(context, folder=folder_of(folder, sink))) for sink in job.into.sinks]


def folder_of(folder: Folder, sink: Sink) -> Folder:
    """The folder of one sink in that of a job's outputs."""
    return folder.child(_folder_name(sink.name))


def _arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as `toArrow` gives them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _folder_name(name: str) -> str:
    """A name for a folder, of which two sinks never have the same.

    >>> _folder_name("postgres revenue")
    'postgres-revenue-230000'
    """
    digest = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9]+', '-', name)[:60]}-{digest}"


def _record(letter: RejectedRow, topic: str) -> tuple[Any, ...]:
    said = {
        "reason": letter.reason.encode(),
        "target": letter.target.encode(),
        "batch": str(letter.batch).encode(),
        "row": letter.row,
    }
    return (topic, letter.value.encode(), [(name, bytearray(value)) for name, value in said.items()])
