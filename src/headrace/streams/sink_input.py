"""What a job hands to its sink: rows, and what tasks do with them until they are records."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.spark.internals import gives_python_fixed_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from headrace.engine.planner import PlannedRows
    from headrace.spark.arrow_step import ArrowFunction
    from headrace.streams.rows import Rows
    from headrace.streams.topic import Topic

BYTES_OF_A_BATCH: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT: Final = str(2**31 - 1)
"""With this Spark does not look at the bytes at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkInput:
    """A DataFrame, and the functions by which its Arrow batches become records of the job's topic."""

    frame: DataFrame
    through: tuple[ArrowFunction, ...] = ()


def sink_input_of(rows: Rows, planned: PlannedRows, into: Topic) -> SinkInput:
    """The rows of a job, as they were planned, on their way into its topic.

    Where our own writer knows their types, they are written by the tasks that encode records; and where the
    job's last step is one in Python, the same tasks do that too, with no Spark in between. Otherwise Spark's
    `to_json` writes them.
    """
    from headrace.columns.preparation import prepare_documents
    from headrace.spark.arrow_step import by_position

    form = into.form(rows.frame)
    if form is None:
        return SinkInput(frame=_addressed(into.records(named_like(planned.frame, rows.frame)), into.name))
    prepare_documents()
    if planned.step is None:
        return SinkInput(frame=by_position(planned.frame), through=(form.records,))
    return SinkInput(frame=planned.step.before, through=(planned.step.function, form.records))


def named_like(planned: DataFrame, rows: DataFrame) -> DataFrame:
    """The planned rows with the names of the logical ones: operators may name columns by position."""
    return planned if planned.columns == rows.columns else planned.toDF(*rows.columns)


@contextmanager
def fitting_batches(sink_input: SinkInput) -> Iterator[None]:
    """A block in which a query is started whose Arrow batches are limited in bytes only where it is needed.

    Spark adds up the bytes of a batch with every row that it writes into it, which takes longer than the
    writing. Rows of fixed sizes need no such limit: that of their number is one of bytes, too.
    """
    conf = sink_input.frame.sparkSession.conf
    before = conf.get(BYTES_OF_A_BATCH)
    if gives_python_fixed_sizes(sink_input.frame):
        conf.set(BYTES_OF_A_BATCH, NO_LIMIT)
    try:
        yield
    finally:
        # The query has its own copy. Other rows of this session may have texts: dead letters, for example.
        conf.set(BYTES_OF_A_BATCH, before or NO_LIMIT)


def _addressed(records: DataFrame, topic: str) -> DataFrame:
    """Records with the topic that each goes to."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return records.withColumn("topic", F.lit(topic))
