"""The user's own Python on rows, a whole Arrow batch at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.columns.changelog import WEIGHT
from headrace.engine.changelog import with_weight
from headrace.engine.columns import listed
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.streams.declarations import read_schema
from headrace.streams.event_time import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.engine.planner import Planner
    from headrace.spark.arrow_step import ArrowFunction
    from headrace.streams.rows import Rows


def map_arrow(rows: Rows, function: Callable[[pa.RecordBatch], Any], schema: str | StructType) -> Rows:
    """What the function makes of each batch: any number of rows, with the columns of `schema`.

    How rows are cut into batches is Spark's affair (at most 50,000 in one), and a batch that is repeated
    after a crash calls the function again, so what it gives should depend on the rows alone. If the column of
    the event time is among the columns, it stays the event time.
    """
    from pyspark.sql.types import StructField, StructType

    struct = _struct(schema)
    plan = current_plan("map_arrow()")
    settings = {
        "inputs": (rows.frame,),
        "behind_ms": rows.behind_ms,
        "is_changelog": plan.is_changelog(rows.frame),
        "function": function,
        "columns": struct,
    }
    if rows.event_time is None or not _has_time(struct, rows.event_time):
        node = plan.add(MapArrow, struct, **settings)
        return replace(rows, frame=node.rows, event_time=None, watermark_delay=None)
    marks = {rows.event_time: mark_of(rows)}
    fields = [StructField(field.name, field.dataType, metadata=marks.get(field.name)) for field in struct]
    return replace(rows, frame=plan.add(MapArrow, StructType(fields), **settings).rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MapArrow(LogicalNode):
    """A function of the user's over Arrow batches."""

    kind: ClassVar[str] = "map_arrow"
    takes_changelogs: ClassVar[bool] = True
    function: Callable[[pa.RecordBatch], Any]
    columns: StructType

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows that the function makes."""
        from pyspark.sql.pandas.types import to_arrow_schema

        from headrace.spark.arrow_step import ArrowStep

        wanted, function = to_arrow_schema(self.columns, timezone="UTC"), self.function
        if planner.weighs(self):
            frame, schema = planner.weighted_frame(self.inputs[0]), with_weight(self.columns)
            return PlannedRows.of(ArrowStep.of(frame, _weighted_stage(function, wanted), schema))

        def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from _fitted(function(batch), wanted)

        return PlannedRows.of(ArrowStep.of(planner.frame(self.inputs[0]), stage, self.columns))

    def details(self) -> Mapping[str, str]:
        """The function's name."""
        return {"function": getattr(self.function, "__name__", type(self.function).__name__)}


def _weighted_stage(function: Callable[[pa.RecordBatch], Any], wanted: pa.Schema) -> ArrowFunction:
    """The function over a changelog: what it makes of a row that is retracted is retracted."""

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for weight in batch[WEIGHT].unique().to_pylist():
                some = batch.filter(pc.equal(batch[WEIGHT], weight)).drop_columns([WEIGHT])
                for made in _fitted(function(some), wanted):
                    yield made.append_column(WEIGHT, pa.array([weight] * made.num_rows, pa.int64()))

    import pyarrow as pa
    import pyarrow.compute as pc

    return stage


def _struct(schema: str | StructType) -> StructType:
    from pyspark.sql.types import StructType

    return schema if isinstance(schema, StructType) else read_schema(schema, "map_arrow")


def _has_time(struct: StructType, column: str) -> bool:
    return column in struct.names and struct[column].dataType.typeName() == "timestamp"


def _fitted(result: Any, wanted: pa.Schema) -> list[pa.RecordBatch]:
    """What the user's function gave, with the columns that were announced, in their order and types."""
    import pyarrow as pa

    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise Misuse(
            f"the function given to map_arrow returned {type(result).__name__}: it has to return a "
            "pyarrow.RecordBatch or a pyarrow.Table."
        )
    if sorted(result.schema.names) != sorted(wanted.names):
        raise Misuse(
            f"the function given to map_arrow returned the columns {listed(result.schema.names)}, and its "
            f"schema says {listed(wanted.names)}: make them agree."
        )
    try:
        fitted = result.select(wanted.names).cast(wanted)
    except pa.ArrowException as error:
        raise Misuse(
            f"the function given to map_arrow returned {_types(result.schema)}, which cannot become the "
            f"{_types(wanted)} of its schema: {error}"
        ) from None
    return fitted.to_batches() if isinstance(fitted, pa.Table) else [fitted]


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
