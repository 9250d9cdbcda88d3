"""Reads ranges of offsets as partial aggregates by key and pane, in a task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.columns.aggregates import ROWS, AggregateSpec
from headrace.columns.window_assigners import assigner_from_json
from headrace.spark.aggregate_pushdown import DEAD_RECORDS, RECORDS, TIME, UNTIMED_RECORDS
from headrace.spark.keyed_stage import BatchTimes
from headrace.spark.layout import ERROR, ERROR_TYPE, VALUE
from headrace.spark.rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.columns.keyed import Times
    from headrace.spark.aggregate_pushdown import AggregatePushdown
    from headrace.spark.offsets import Range
    from headrace.spark.source import Reading

TYPES: Final = {"bigint": pa.int64(), "double": pa.float64()}


def read_partial_aggregates(
    reading: Reading, sums: AggregatePushdown, ranges: Iterable[Range]
) -> Iterator[pa.RecordBatch]:
    """The partial aggregates of the records of `ranges`, as batches of exactly the schema."""
    parsed = StructType().add(VALUE, reading.layout.value_type(reading.schema)).add(ERROR, ERROR_TYPE)
    times = BatchTimes.of_task().times.behind(sums.behind_us)
    task = PartialAggregationTask(sums, to_arrow_schema(reading.schema, timezone="UTC"), times)
    return task.rows(read_rows(replace(reading, schema=parsed, sums=None), ranges))


class PartialAggregationTask:
    """Aggregates what one task has read."""

    def __init__(self, sums: AggregatePushdown, schema: pa.Schema, times: Times) -> None:
        self._sums = sums
        self._times = times
        self._schema = schema
        newest = AggregateSpec(name=TIME, kind="max", column=TIME)
        assigner = assigner_from_json(sums.assigner)
        self._aggregate = assigner.partial_aggregation(TIME, sums.keys, (*sums.specs, newest))
        self._records = self._dead = self._untimed = 0

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The partial aggregates, and a row that counts the records that are in none of them."""
        summed = 0
        for pieces in self._aggregate(map(self._summands, batches), self._times):
            counts = pieces[ROWS]
            summed += int(counts.to_numpy().sum())
            columns = {name: pieces[name] for name in pieces.schema.names}
            none = pa.array(np.zeros(len(counts), np.int64))
            yield self._shaped({**columns, RECORDS: counts, DEAD_RECORDS: none, UNTIMED_RECORDS: none})
        if self._records > summed:
            left = {RECORDS: self._records - summed, DEAD_RECORDS: self._dead, UNTIMED_RECORDS: self._untimed}
            yield self._shaped({name: pa.array([count]) for name, count in left.items()})

    def _summands(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Time, keys and values of the records that parsed; all are counted."""
        value, error = batch[VALUE], batch[ERROR]
        self._records += batch.num_rows
        self._dead += batch.num_rows - error.null_count
        if value.null_count or error.null_count < batch.num_rows:
            value = value.filter(pc.and_(value.is_valid(), error.is_null()))
        columns = {TIME: value.field(self._sums.time).cast(pa.int64())}
        self._untimed += columns[TIME].null_count
        columns |= {key: value.field(key) for key in self._sums.keys}
        for one in self._sums.values:
            column = value.field(one.field)
            columns[one.name] = column.cast(TYPES[one.type]) if one.type in TYPES else column
        return pa.RecordBatch.from_pydict(columns)

    def _shaped(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        length = len(columns[RECORDS])
        arrays = [
            columns[name].cast(field.type) if name in columns else pa.nulls(length, field.type)
            for name, field in zip(self._sums.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
