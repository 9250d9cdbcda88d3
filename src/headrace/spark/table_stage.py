"""A table's copy in a streaming query: brought up to date by the driver, looked up by tasks.

The stage is a step of the query like any other: no shuffle, no scan of the table. What changes from batch to
batch is which files hold the table; that reaches tasks as a property of the thread that runs the batches.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from headrace.columns.key_hash import key_bytes
from headrace.errors import HeadraceError
from headrace.spark.arrow_step import ArrowStep
from headrace.tables.changes import ChangeReader
from headrace.tables.copy import Current, TableCopy
from headrace.tables.lookup import SnapshotCache
from headrace.tables.preparation import prepare_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.spark.transactional_batch import Batch
    from headrace.tables.changes import Positions
    from headrace.tables.definition import Definition
    from headrace.tables.lookup import Matches

PROPERTY: Final = "headrace.table."
"""Followed by the table's topic: the files that hold the table in the batch that runs."""

_snapshots = SnapshotCache()
"""The files that this process has open: Python workers serve task after task."""


def positions_of(batch: Batch, topic: str) -> tuple[Positions, Positions]:
    """Where a batch begins and ends in a table's topic; the first one begins with all that is there."""
    ends = [batch.start if batch.id else {}, batch.end]
    start, end = ({int(number): at for number, at in each.get(topic, {}).items()} for each in ends)
    return start, end


class NoTable(HeadraceError):
    """A task was to look into a table, and nobody told it where the table is."""


class TableFeed:
    """Keeps the copy of one table in step with the batches of a query."""

    def __init__(self, context: SparkContext, folder: Path, definition: Definition) -> None:
        self._context = context
        self._folder = folder
        self._definition = definition
        self._copy: TableCopy | None = None
        self._reader: ChangeReader | None = None

    def update(self, batch: Batch) -> None:
        """Bring the copy to where the batch ends in its topic, and tell the tasks of this thread."""
        if self._copy is None:
            prepare_tables()
            self._reader = ChangeReader(batch.cluster, self._definition)
            self._copy = TableCopy(self._folder, self._definition, self._reader.read)
        start, end = positions_of(batch, self._definition.topic)
        current = self._copy.advance(batch.id, end, start=start)
        self._context.setLocalProperty(PROPERTY + self._definition.topic, json.dumps(asdict(current)))

    def records(self) -> int:
        """How many records of the table were read so far."""
        return 0 if self._reader is None else self._reader.records

    def unread(self, batch: Batch) -> pa.Table:
        """The records of the batch, which is the one of the last update, that named no row."""
        assert self._reader is not None
        return self._reader.unread(*positions_of(batch, self._definition.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStage:
    """What tasks do with rows: plain data, that travels to them."""

    topic: str
    keys: tuple[str, ...]
    """Columns with the table's key, of the table's own types; they are no part of the result."""
    time: str | None
    """The column with the time at which a version has to count; None for the newest."""
    is_inner: bool
    """Whether rows without a row of the table are left out."""
    before_us: int = 0
    """How long before that time: the time of a window's result is just before its end."""

    def step(self, rows: DataFrame, schema: StructType) -> ArrowStep:
        """The rows, and beside them the row of the table that belongs to each; `schema` is of both."""
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema, timezone="UTC")

        def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return self.joined(batches, arrow)

        return ArrowStep.of(rows, stage, schema)

    def joined(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The task's side of the stage."""
        snapshot = _snapshots.snapshot(_current(self.topic))
        for batch in batches:
            keys = key_bytes([batch.column(name) for name in self.keys])
            matches = snapshot.look_up(keys, self._times(batch))
            yield self._beside(batch, matches, schema)

    def _times(self, batch: pa.RecordBatch) -> Any:
        if self.time is None:
            return None
        times = batch.column(self.time).cast(pa.int64())
        found = times.fill_null(np.iinfo(np.int64).min + self.before_us).to_numpy(zero_copy_only=False)
        if not self.before_us:
            return found
        earlier = found - self.before_us
        earlier.flags.writeable = False  # as Arrow's: loops are compiled for one type
        return earlier

    def _beside(self, batch: pa.RecordBatch, matches: Matches | None, schema: pa.Schema) -> pa.RecordBatch:
        own = [batch.column(name) for name in batch.schema.names if name not in self.keys]
        if matches is None:
            found = [pa.nulls(batch.num_rows, field.type) for field in list(schema)[len(own) :]]
        else:
            found = matches.columns
        columns = [column.cast(field.type) for column, field in zip([*own, *found], schema, strict=True)]
        joined = pa.RecordBatch.from_arrays(columns, schema=schema)
        if not self.is_inner:
            return joined
        return joined.slice(0, 0) if matches is None else joined.filter(pa.array(matches.is_match))


def _current(topic: str) -> Current:
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(PROPERTY + topic)
    if text is None:
        raise NoTable(
            f"the table of {topic!r} was joined by a query that no job runs: tables are there inside of "
            "jobs, which keep their copies up to date."
        )
    return Current(**json.loads(text))
