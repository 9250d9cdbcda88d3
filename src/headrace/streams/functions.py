"""The user's own Python on rows, a whole Arrow batch at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import Misuse
from headrace.streams.columns import listed
from headrace.streams.event_time import keep_event_time
from headrace.streams.schemas import read_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.streams.rows import Rows


def map_arrow(rows: Rows, function: Callable[[pa.RecordBatch], Any], schema: str | StructType) -> Rows:
    """What the function makes of each batch: any number of rows, with the columns of `schema`.

    How rows are cut into batches is Spark's affair (at most 50,000 in one), and a batch that is repeated
    after a crash calls the function again, so what it gives should depend on the rows alone. If the column of
    the event time is among the columns, it stays the event time.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    from headrace.spark.arrow_step import ArrowStep

    struct = _struct(schema)
    wanted = to_arrow_schema(struct, timezone="UTC")

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _fitted(function(batch), wanted)

    step = ArrowStep.of(rows.frame, stage, struct)
    if rows.event_time is None or not _has_time(struct, rows.event_time):
        return replace(rows, frame=step.rows, step=step, event_time=None, watermark_delay=None)
    timed = keep_event_time(step.rows, rows)
    return replace(rows, frame=timed, step=step.giving(timed))


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
