"""A view over tables in a streaming query: its changes are found by the driver, and given out by tasks.

Before a batch the driver brings the copies of the tables to where the batch ends, and writes to a file what
that changes in the view. The stage is a step of the query like any other, that makes rows of the file; which
one it is reaches tasks as a property of the thread that runs the batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headrace.errors import HeadraceError
from headrace.spark.arrow_step import ArrowStep
from headrace.spark.table_stage import positions_of
from headrace.tables.changes import ChangeReader
from headrace.tables.view_join import ViewJoin
from headrace.tables.view_table import Step, ViewTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.client.cluster import Cluster
    from headrace.spark.transactional_batch import Batch
    from headrace.tables.view_join import Images, ViewShape
    from headrace.tables.view_table import WholeRows

PROPERTY: Final = "headrace.view."
"""Followed by the view's folder: the file with the changes of the batch that runs."""
OUTLINE: Final = "outline.json"
FLAG: Final = "flag"
"""The last column of a file: of changes whether a row is gone, of images whether it is one of after."""
ROWS_OF_A_TASK: Final = 20_000
"""So few rows are not worth a second task."""
ROWS_OF_A_BATCH: Final = 50_000


class NoView(HeadraceError):
    """A task was to give out the changes of a view, and nobody told it where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFolder:
    """Where a view has its tables and what it was made of."""

    path: Path

    def outline(self) -> object:
        """Of the view that the files belong to; None if there are none."""
        try:
            return json.loads((self.path / OUTLINE).read_text())
        except (FileNotFoundError, ValueError):
            return None  # not there, or not whole: it is a help for those who change a job, and no state

    def begin(self, shape: ViewShape) -> None:
        """Note what the files belong to."""
        if self.outline() is None:
            self.path.mkdir(parents=True, exist_ok=True)
            aside = self.path / f"{OUTLINE}.new"
            aside.write_text(json.dumps(shape.outline))
            aside.replace(self.path / OUTLINE)

    def table(self, topic: str) -> Path:
        """The folder of a table's copy."""
        return self.path / "tables" / quote(topic, safe="")

    def write_changes(self, batch: int, rows: pa.Table) -> Path:
        """Write the changes of a batch, and remove those of others; a repeated batch has them anew."""
        for old in self.path.glob("changes-*.arrow"):
            old.unlink()
        path = self.path / f"changes-{batch}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=ROWS_OF_A_BATCH)
        return path


class ViewFeed:
    """Keeps the tables of one view in step with the batches of a query."""

    def __init__(
        self,
        context: SparkContext,
        folder: ViewFolder,
        shape: ViewShape,
        *,
        with_images: bool = False,
    ) -> None:
        self._context = context
        self._folder = folder
        self._shape = shape
        self._tables: dict[str, ViewTable] = {}
        self._readers: dict[str, ChangeReader] = {}
        self._with_images = with_images
        """Whether tasks want the rows as they were and as they are, instead of the changes."""

    def update(self, batch: Batch) -> None:
        """Find what the batch changes in the view, and tell the tasks of this thread."""
        self._folder.begin(self._shape)
        if not self._tables:
            self._tables = {table.topic: self._opened(table, batch.cluster) for table in self._shape.tables}
        for topic, table in self._tables.items():
            start, end = positions_of(batch, topic)
            table.advance(Step(batch=batch.id, start=start if batch.id else None, end=end))
        join = ViewJoin(self._shape, [self._tables[table.topic] for table in self._shape.tables])
        images = join.images()
        rows = _image_rows(images) if self._with_images else _change_rows(images)
        path = self._folder.write_changes(batch.id, rows)
        self._context.setLocalProperty(PROPERTY + str(self._folder.path), str(path))

    def records(self) -> int:
        """How many records of the tables were read so far."""
        return sum(reader.records for reader in self._readers.values())

    def unread(self, topic: str, batch: Batch) -> pa.Table:
        """The records of a table in the batch, which is the one of the last update, that named no row."""
        return self._readers[topic].unread(*positions_of(batch, topic))

    def _opened(self, table: WholeRows, cluster: Cluster) -> ViewTable:
        reader = self._readers[table.topic] = ChangeReader(cluster, table)
        return ViewTable(self._folder.table(table.topic), table, reader.read)


def _change_rows(images: Images) -> pa.Table:
    columns, is_gone = images.changes()
    return _flagged(columns, is_gone)


def _image_rows(images: Images) -> pa.Table:
    was, now = pa.array(images.was), pa.array(images.now)
    before = _flagged([column.filter(was) for column in images.before], np.zeros(images.was.sum(), np.bool_))
    after = _flagged([column.filter(now) for column in images.after], np.ones(images.now.sum(), np.bool_))
    return pa.concat_tables([before, after])


def _flagged(columns: list[pa.Array], flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Table:
    names = [f"c{number}" for number in range(len(columns))]
    return pa.Table.from_arrays([*columns, pa.array(flags)], names=[*names, FLAG])


def watched(spark: SparkSession, bootstrap: str, topic: str, others: Iterable[str]) -> DataFrame:
    """A stream that has a batch for each change of the topics, and a row for each of the batch's tasks."""
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("follow", ",".join(others))
        .option("startingOffsets", "earliest")
        .option("positionsOnly", "true")
        .option("failOnDataLoss", "false")
        .option("minPartitions", str(_tasks(spark)))
        .option("columns", "partition")
        .load()
    )


def _tasks(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStage:
    """What tasks do: plain data, that travels to them."""

    folder: str
    flagged: bool | None = None
    """Give out only the rows whose flag is this, and leave the flag out; None for all, with their flags."""

    def step(self, watched: DataFrame, schema: StructType) -> ArrowStep:
        """The changes of each batch of a stream that has a row for each task."""
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow, tasks = to_arrow_schema(schema, timezone="UTC"), _tasks(watched.sparkSession)

        def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # A task's own number would not do: behind a union or a coalesce it is another one.
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self.share(arrow, number, tasks)

        return ArrowStep.of(watched, stage, schema)

    def share(self, schema: pa.Schema, number: int, tasks: int) -> Iterator[pa.RecordBatch]:
        """The task's side of the stage."""
        context = TaskContext.get()
        path = None if context is None else context.getLocalProperty(PROPERTY + self.folder)
        if path is None:
            raise NoView(
                "a view over tables was asked for by a query that no job runs: return it from a job."
            )
        rows = pa.ipc.open_file(pa.memory_map(path)).read_all()
        if self.flagged is not None:
            flags = rows.column(FLAG)
            rows = rows.filter(flags if self.flagged else pc.invert(flags)).drop_columns([FLAG])
        start, end = _share(rows.num_rows, number, tasks)
        shared = rows.slice(start, end - start).rename_columns(schema.names).cast(schema)
        yield from shared.to_batches(max_chunksize=ROWS_OF_A_BATCH)


def _share(rows: int, task: int, tasks: int) -> tuple[int, int]:
    """The rows of one task of several.

    >>> [_share(100_001, task, 2) for task in (0, 1)], [_share(3, task, 2) for task in (0, 1)]
    ([(0, 50000), (50000, 100001)], [(0, 3), (3, 3)])
    """
    if rows <= ROWS_OF_A_TASK:
        return (0, rows) if task == 0 else (rows, rows)
    return rows * task // tasks, rows * (task + 1) // tasks
