"""A view over tables in a streaming query: tasks read the tables, and join what changes with their state.

```text
 positions ─▶ read records ─▶ shuffle ─▶ last rows ─▶ shuffle ─▶ join ─▶ … ─▶ shuffle ─▶ changes of the view
 (driver)     of all tables    by key     of the       by foreign key           by key
                                          first table
```

The source only journals where a batch ends in each topic. Between the steps rows travel packed: a row of
Spark's is a piece of an Arrow table for one task, so that Spark neither converts nor hashes single rows.
Records of the table that a later step joins pass through the steps before it as they are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headrace.client.offsets import EARLIEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.key_hash import keys_of
from headrace.errors import HeadraceError, Misuse
from headrace.spark.arrow_step import ArrowStep
from headrace.spark.keyed_stage import ROWS_OF_A_BATCH, BatchTimes, shuffle_partitions
from headrace.spark.offsets import Range, tasks
from headrace.spark.table_stage import positions_of
from headrace.state.files import state_files
from headrace.state.indexed import column_keys, single
from headrace.state.operators import OperatorManifest, read_operator, write_operator
from headrace.tables.changes import UNREAD, ChangeReader
from headrace.tables.kernels import hash_keys
from headrace.tables.view_join import (
    KEY,
    ChangeRows,
    FirstTable,
    TableJoin,
    find_changes,
    read_records,
    record_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.spark.arrow_step import Batches
    from headrace.spark.options import ClusterConnection
    from headrace.spark.transactional_batch import Batch
    from headrace.tables.view_join import ViewShape

PROPERTY: Final = "headrace.view."
"""Followed by the view's folder: what tasks have to know of the batch that runs."""
ROWS_OF_A_TASK: Final = 20_000
"""The changes of a batch with fewer records than this are gathered by one task, in order of their keys."""
PACKED: Final = "slot int, kind string, data binary"
"""A part of the rows of one kind, for the task of that number, as an Arrow stream."""
OLD: Final = "old"
NEW: Final = "new"
"""The kinds of change rows. Records of a table are of a kind that is its number in the view."""
AFTER: Final = "_headrace_after"
"""Whether a row is as it is, and not as it was."""
UNREAD_FOLDER: Final = "unread"
UNREAD_SUFFIX: Final = ".arrow"


class NoView(HeadraceError):
    """A task was to compute the changes of a view, and does not know of which batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStage:
    """A view in the query of a job; `prepare` has to be called before each batch."""

    folder: str
    """Where the state of the first step is; the others have folders of their own next to it."""
    shape: ViewShape
    link: ClusterConnection

    def changes(self, watched: DataFrame, schema: StructType) -> ArrowStep:
        """What changes in the view in each batch; `schema` has one column more, which says what is gone."""
        from pyspark.sql.pandas.types import to_arrow_schema

        task = FoundChanges(shape=self.shape, schema=to_arrow_schema(schema, timezone="UTC"))
        return ArrowStep.of(self.rows(watched), task, schema)

    def image(self, rows: DataFrame, schema: StructType, *, is_after: bool) -> ArrowStep:
        """The changed rows as they were, or as they are; `rows` are those of `rows`."""
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema, timezone="UTC")
        return ArrowStep.of(rows, Image(shape=self.shape, is_after=is_after, schema=arrow), schema)

    def rows(self, watched: DataFrame) -> DataFrame:
        """The change rows of the view, packed: all rows of a key are in one task."""
        count = self.partitions(watched.sparkSession)
        read = ReadTables(folder=self.folder, shape=self.shape, link=self.link, partitions=count)
        rows = watched.mapInArrow(read, PACKED)
        for number in range(len(self.shape.joined) + 1):
            step = ViewStep(
                view=self.folder,
                folder=self.folder_of(number),
                shape=self.shape,
                number=number,
                partitions=count,
            )
            rows = _shuffled(rows, count).mapInArrow(step, PACKED)
        return _shuffled(rows, count)

    def folder_of(self, number: int) -> str:
        """The folder of the state of a step."""
        return f"{self.folder}.join-{number}" if number else self.folder

    def partitions(self, spark: SparkSession) -> int:
        """Into how many partitions the state is divided: it stays what it was first."""
        known = read_operator(self.folder)
        return shuffle_partitions(spark.range(0)) if known is None else known.partitions

    def prepare(self, batch: Batch, spark: SparkSession) -> int:
        """Tell the tasks of a batch which one it is; returns how many offsets it has."""
        count = self.partitions(spark)
        for number, table in enumerate(self.shape.tables):
            manifest = OperatorManifest(partitions=count, outline=self.shape.outline, keys=table.key)
            write_operator(self.folder_of(number), manifest, batch=batch.id)
        UnreadRecords(self.folder).clear()
        ranges = [each for topic in self.topics for each in batch_ranges(batch, topic)]
        shares = tasks(ranges, parallelism=shuffle_partitions(spark.range(0)))
        context = spark.sparkContext
        records = sum(each.size for each in ranges)
        told = {"shares": shares, "last_tasks": count if records > ROWS_OF_A_TASK else 1}
        context.setLocalProperty(PROPERTY + self.folder, json.dumps(told))
        BatchTimes.of(batch).publish(context)
        return records

    @property
    def topics(self) -> list[str]:
        """The topics of the tables, each once."""
        return list(dict.fromkeys(table.topic for table in self.shape.tables))


def watched(spark: SparkSession, bootstrap: str, topics: Sequence[str]) -> DataFrame:
    """A stream that has a batch for each change of the topics, and a row for each of its tasks.

    Where captures write the topics, a batch ends where all of them hold whole transactions of their database.
    """
    topic, *others = topics
    return (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("follow", ",".join(others))
        .option("startingOffsets", "earliest")
        .option("positionsOnly", "true")
        .option("wholeTransactions", "true")
        .option("failOnDataLoss", "false")
        .option("minPartitions", str(shuffle_partitions(spark.range(0))))
        .option("columns", "partition")
        .load()
    )


def _shuffled(rows: DataFrame, partitions: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return rows.repartitionById(partitions, F.col("slot"))


def batch_ranges(batch: Batch, topic: str) -> list[Range]:
    """What a batch reads of a topic; a partition without a start begins at its first record.

    What retention or compaction has removed is no longer part of the table.
    """
    start, end = positions_of(batch, topic)
    # A topic that was made again ends before what was read.
    new = [number for number, until in end.items() if not start.get(number, until + 1) <= until]
    first = list_offsets(batch.cluster, {TopicPartition(topic, number): EARLIEST for number in new})
    ranges = []
    for number, until in sorted(end.items()):
        partition = TopicPartition(topic, number)
        ranges.append(Range(partition, first.get(partition, start.get(number, 0)), until))
    return ranges


class UnreadRecords:
    """The records of a batch that name no row: tasks write them, and the driver reads them."""

    def __init__(self, folder: str) -> None:
        self._files = state_files(folder).child(UNREAD_FOLDER)

    def clear(self) -> None:
        """Forget those of earlier batches and attempts."""
        for name in self._files.names():
            self._files.delete(name)

    def write(self, topic: str, task: int, unread: pa.Table) -> None:
        """Those that one task has found."""
        rows = unread.append_column("topic", pa.array([topic] * unread.num_rows, pa.string()))
        with (
            self._files.create(f"{topic}-{task}{UNREAD_SUFFIX}") as file,
            pa.ipc.new_file(file, rows.schema) as writer,
        ):
            writer.write_table(rows)

    def read(self, topic: str) -> pa.Table:
        """Those of a topic, in its order."""
        found = [UNREAD.empty_table()]
        for name in self._files.names():
            rows = pa.ipc.open_file(pa.BufferReader(self._files.map(name))).read_all()
            found.append(rows.filter(pc.equal(rows["topic"], topic)).drop_columns(["topic"]))
        return pa.concat_tables(found).sort_by([("partition", "ascending"), ("offset", "ascending")])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTables:
    """A task that reads a share of the records of all tables of a view."""

    folder: str
    shape: ViewShape
    link: ClusterConnection
    partitions: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The records, packed for the tasks of their keys."""
        # A task's own number would not do: behind a union or a coalesce it is another one.
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._share(number)

    def _share(self, number: int) -> Iterator[pa.RecordBatch]:
        shares = _batch_property(self.folder)["shares"]
        ranges = shares[number] if number < len(shares) else []
        by_topic: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for (topic, partition), start, end in ranges:
            by_topic[topic].append((partition, start, end))
        for topic, parts in by_topic.items():
            yield from self._records(topic, parts, number)

    def _records(
        self, topic: str, parts: Sequence[tuple[int, int, int]], number: int
    ) -> Iterator[pa.RecordBatch]:
        roles = [role for role, table in enumerate(self.shape.tables) if table.topic == topic]
        definition = self.shape.tables[roles[0]]
        reader = ChangeReader(self.link.cluster(), definition)
        unread = []
        for partition, start, end in parts:
            for changes in reader.read_range(TopicPartition(topic, partition), start, end):
                if changes.unread.num_rows:
                    unread.append(changes.unread)
                records = read_records(definition, changes.versions)
                for role in roles:
                    yield from packed(str(role), records, single(records[KEY]), self.partitions)
        if unread:
            UnreadRecords(self.folder).write(topic, number, pa.concat_tables(unread))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewStep:
    """A task of one step of a view, with the state of its partition."""

    view: str
    folder: str
    shape: ViewShape
    number: int
    """0 for the first table, or the number of the table that is joined."""
    partitions: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The change rows of the step, and the records of later tables."""
        context = TaskContext.get()
        assert context is not None, "only tasks run steps"
        rows = PackedRows()
        for batch in batches:
            rows.add(batch, until=self.number)
            yield from rows.taken()
        place = context.partitionId()
        rows.check(place)
        changes = self._changes(rows, place)
        by, count = self.shape.key, _batch_property(self.view)["last_tasks"]
        if self.number < len(self.shape.joined):
            by, count = self.shape.joined[self.number].by, self.partitions
        for kind, table in ((OLD, changes.old), (NEW, changes.new)):
            yield from packed(kind, table, self._keys(table, by), count)

    def _changes(self, rows: PackedRows, place: int) -> ChangeRows:
        files = state_files(self.folder).child(str(place))
        version = BatchTimes.of_task().batch
        records = rows.table(str(self.number), record_schema(self.shape.tables[self.number]))
        if not self.number:
            return FirstTable(shape=self.shape).advance(files, version, records)
        schema = self.shape.schema_before(self.number)
        changes = ChangeRows(rows.table(OLD, schema), rows.table(NEW, schema))
        return TableJoin(shape=self.shape, number=self.number).advance(files, version, changes, records)

    def _keys(self, rows: pa.Table, by: tuple[str, ...]) -> pa.LargeBinaryArray:
        """Where rows go: rows without a foreign key, which find nothing, are spread by their own."""
        keys = column_keys(rows, by)
        return pc.coalesce(keys, column_keys(rows, self.shape.key)) if keys.null_count else keys


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChanges:
    """A task that makes changes of the view of the change rows of its keys."""

    shape: ViewShape
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The rows that are new or different, and those that are gone, in order of their keys."""
        changes = change_rows(self.shape, batches)
        rows, is_gone = find_changes(changes, self.shape.key)
        rows = rows.append_column("gone", pa.array(is_gone))
        yield from _shaped(rows.sort_by([(name, "ascending") for name in self.shape.key]), self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A task that gives the changed rows as they were, or as they are."""

    shape: ViewShape
    is_after: bool
    schema: pa.Schema

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The rows."""
        yield from _shaped(change_rows(self.shape, batches)[self.is_after], self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindChanges:
    """Finds the changes of a view behind a function of the user's: plain data, that travels to tasks.

    The function must not be applied to changes: a filter would hide that a row no longer passes, and the view
    would keep it. So it is applied to the rows as they were and as they are, in two DataFrames.
    """

    key: tuple[str, ...]

    def step(self, before: DataFrame, after: DataFrame, schema: StructType) -> ArrowStep:
        """The rows that are new, different or gone; `schema` has one column more, which says who is gone."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema, timezone="UTC")

        def stage(batches: Batches) -> Iterator[pa.RecordBatch]:
            gathered = list(batches)
            return self.changes(pa.Table.from_batches(gathered), arrow) if gathered else iter(())

        both = before.withColumn(AFTER, F.lit(False)).unionAll(after.withColumn(AFTER, F.lit(True)))
        columns = [F.col("`" + name.replace("`", "``") + "`") for name in self.key]
        return ArrowStep.of(both.repartition(*columns), stage, schema)

    def changes(self, images: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The task's side."""
        is_after = images[AFTER]
        rows = images.drop_columns([AFTER])
        changes = ChangeRows(rows.filter(pc.invert(is_after)), rows.filter(is_after))
        found, is_gone = find_changes(changes, self.key)
        yield from _shaped(found.append_column(schema.names[-1], pa.array(is_gone)), schema)


def change_rows(shape: ViewShape, batches: Batches) -> ChangeRows:
    """The change rows of a view that a task got."""
    rows = PackedRows()
    for batch in batches:
        rows.add(batch)
    schema = shape.schema_before(len(shape.tables))
    return ChangeRows(rows.table(OLD, schema), rows.table(NEW, schema))


def _shaped(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    shaped = rows.rename_columns(schema.names).cast(schema)
    yield from shaped.combine_chunks().to_batches(max_chunksize=ROWS_OF_A_BATCH)


class PackedRows:
    """The packed rows that a task got, by their kind."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.RecordBatch]] = defaultdict(list)
        self._slots: set[int] = set()
        self._passed: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch, *, until: int | None = None) -> None:
        """Unpack rows; records of tables that come after `until` are left as they are."""
        slots, kinds, data = batch.columns
        self._slots.update(slots.to_pylist())
        is_passed = np.zeros(batch.num_rows, np.bool_)
        for number, kind in enumerate(kinds.to_pylist()):
            if until is not None and kind.isdecimal() and int(kind) > until:
                is_passed[number] = True
            else:
                reader = pa.ipc.open_stream(data[number].as_buffer())
                self._parts[kind] += list(reader)
        if is_passed.any():
            self._passed.append(batch.filter(pa.array(is_passed)))

    def taken(self) -> Iterator[pa.RecordBatch]:
        """The rows that were left as they are."""
        yield from self._passed
        self._passed = []

    def check(self, place: int) -> None:
        """Refuse rows that are for another task."""
        if self._slots - {place}:
            raise Misuse(
                "the tasks of a view over tables were put together with others, or into fewer tasks."
            )

    def table(self, kind: str, schema: pa.Schema) -> pa.Table:
        """All rows of a kind."""
        return pa.Table.from_batches(self._parts[kind], schema=schema)


def packed(kind: str, rows: pa.Table, keys: pa.LargeBinaryArray, partitions: int) -> Iterator[pa.RecordBatch]:
    """Rows as pieces for the tasks of their keys."""
    if not rows.num_rows:
        return
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys_of(keys), hashes)
    slots = (hashes % np.uint64(partitions)).astype(np.int32)
    order = np.argsort(slots, kind="stable")
    sorted_rows = rows.take(pa.array(order)).combine_chunks()
    ends = np.searchsorted(slots[order], np.arange(partitions), side="right")
    begin = 0
    for slot, end in enumerate(ends.tolist()):
        for first in range(begin, end, ROWS_OF_A_BATCH):
            part = sorted_rows.slice(first, min(ROWS_OF_A_BATCH, end - first))
            yield _piece(slot, kind, part)
        begin = end


def _piece(slot: int, kind: str, rows: pa.Table) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    columns = [
        pa.array([slot], pa.int32()),
        pa.array([kind], pa.string()),
        pa.array([sink.getvalue().to_pybytes()], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["slot", "kind", "data"])


def _batch_property(folder: str) -> dict[str, Any]:
    context = TaskContext.get()
    text = None if context is None else context.getLocalProperty(PROPERTY + folder)
    if text is None:
        raise NoView("a view over tables was asked for by a query that no job runs: return it from a job.")
    told: dict[str, Any] = json.loads(text)
    return told
