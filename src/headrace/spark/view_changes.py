"""What a function of the user's makes of a view: changed where its rows of before and of after differ.

A change is not what the function may see: one that filters rows would take a row that no longer passes for
one that has not changed, and the view would keep it. So it is given the rows of the view as they were and as
they are, in two DataFrames, and the changes are found behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.key_hash import key_bytes
from headrace.errors import HeadraceError
from headrace.spark.arrow_step import ArrowStep
from headrace.tables.view_join import rows_differ

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

AFTER: Final = "_headrace_after"


class TwoRows(HeadraceError):
    """A function made two rows of a view that have the same key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindChanges:
    """What tasks do, each with all rows of some keys: plain data, that travels to them."""

    key: tuple[str, ...]

    def step(self, before: DataFrame, after: DataFrame, schema: StructType) -> ArrowStep:
        """The rows that are new, different or gone; `schema` has one column more, which says who is gone."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
        from pyspark.sql.pandas.types import to_arrow_schema

        arrow = to_arrow_schema(schema, timezone="UTC")

        def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            gathered = list(batches)
            return self.changes(pa.Table.from_batches(gathered), arrow) if gathered else iter(())

        both = before.withColumn(AFTER, F.lit(False)).unionAll(after.withColumn(AFTER, F.lit(True)))
        columns = [F.col("`" + name.replace("`", "``") + "`") for name in self.key]
        return ArrowStep.of(both.repartition(*columns), stage, schema)

    def changes(self, images: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The task's side."""
        is_after = images.column(AFTER)
        rows = images.drop_columns([AFTER]).combine_chunks()
        before, after = rows.filter(pc.invert(is_after)), rows.filter(is_after)
        # The place that the row of each key has on the other side, null where it has none.
        old = pc.index_in(self._keys(after), self._keys(before))
        new = pc.index_in(self._keys(before), self._keys(after))
        differs = old.is_null().to_numpy(zero_copy_only=False)
        both = np.flatnonzero(~differs)
        was = before.take(old.drop_null())
        differs = differs.copy()
        differs[both] = rows_differ(_columns(was), _columns(after.take(pa.array(both))))
        yield from _marked(after.filter(pa.array(differs)), schema, is_gone=False)
        yield from _marked(before.filter(new.is_null()), schema, is_gone=True)

    def _keys(self, rows: pa.Table) -> pa.LargeBinaryArray:
        columns = [_single(rows.column(name)) for name in self.key]
        keys = key_bytes(columns)
        if len(pc.unique(keys)) < len(keys):
            raise TwoRows(
                "the function given to transform() made several rows of one row of the view, which has one "
                f"for each {', '.join(self.key)}. Write the view, and read its topic with another job."
            )
        return keys


def _columns(rows: pa.Table) -> list[pa.Array]:
    return [_single(column) for column in rows.columns]


def _single(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _marked(rows: pa.Table, schema: pa.Schema, *, is_gone: bool) -> Iterator[pa.RecordBatch]:
    flags = pa.array(np.full(rows.num_rows, is_gone))
    marked = rows.append_column(schema.names[-1], flags)
    yield from marked.cast(schema).combine_chunks().to_batches()
