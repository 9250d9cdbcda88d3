"""The outputs of a job that has more than one topic: each micro-batch is computed once, and given to each.

Targets come first, each with a mark of its own, then the log's transaction with its records, the dead
letters, the offsets and the mark. A crash in between repeats the batch: targets that have it are passed over.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import Misuse
from headrace.sinks.delivery import SinkDelivery, read_generation
from headrace.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.files import Folder
    from headrace.sinks.delivery import RejectedRow
    from headrace.sinks.sink import Sink
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.job import Job
    from headrace.streams.report import JobMetrics

LETTER: Final = "topic string, value binary, headers array<struct<key: string, value: binary>>"


class Outputs:
    """The places that the rows of one run of a job go to."""

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
        self._deliveries = [
            SinkDelivery(sink, place, on_status=self._tell, wait=pause)
            for sink, place in _places(job, schema, folder, state)
        ]

    @contextmanager
    def deliver(self, rows: DataFrame, batch: Batch) -> Iterator[DataFrame | None]:
        """Give the rows of a batch to all targets; then, in the block, the records for the topics, if any."""
        is_read_again = bool(self._job.into.topics)
        if is_read_again:
            rows.persist()
        try:
            self._letters = []
            if self._deliveries:
                self._to_targets(rows.toArrow(), batch.id)
            yield self._job.into.records(rows) if is_read_again else None
        finally:
            if is_read_again:
                rows.unpersist()

    def _to_targets(self, table: pa.Table, batch: int) -> None:
        self._steps("collected", batch)
        for delivery in self._deliveries:
            self._letters += delivery.deliver(batch, table)
        self._steps("delivered", batch)

    def letters(self, batch: Batch) -> DataFrame | None:  # noqa: ARG002  the one that was delivered just now
        """The dead letters of the batch: the rows that targets did not take."""
        if not self._letters:
            return None
        self._metrics.refused += len(self._letters)
        records = [_record(letter, self._job.dead_topic) for letter in self._letters]
        return self._spark.createDataFrame(records, LETTER)

    def _tell(self, held_up: str) -> None:
        self._metrics.held_up = held_up

    def close(self) -> None:
        """Hang up."""
        self._tell("")
        for delivery in self._deliveries:
            delivery.close()


def _places(job: Job, schema: StructType, folder: Folder, state: Path) -> list[tuple[Sink, SinkContext]]:
    if not job.into.sinks:
        return []
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise Misuse(f"job {job.name!r}: its rows have two columns named {twice[0]!r}: rename one.")
    place = SinkContext(
        job=job.full_name,
        generation=read_generation(folder),
        schema=_arrow_schema(schema),
        folder=folder,
        state=state,
    )
    return [(sink, replace(place, folder=folder_of(folder, sink))) for sink in job.into.sinks]


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
