"""What jobs hand to their sinks: who writes the rows as records, and in how many steps."""

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.engine.planner import PlannedRows
from headrace.spark.arrow_step import ArrowStep, chained
from headrace.spark.internals import gives_python_fixed_sizes
from headrace.streams.rows import Rows
from headrace.streams.sink_input import BYTES_OF_A_BATCH, NO_LIMIT, SinkInput, fitting_batches, sink_input_of
from headrace.streams.topic import Topic
from headrace.testing import run

pytestmark = pytest.mark.timeout(240)

OUT = Topic(name="out", key=("n",))


def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"n": pc.multiply(batch.column(0), 2)})


@pytest.fixture
def stepped(spark: SparkSession) -> PlannedRows:
    before = spark.createDataFrame([(21,)], "n long")
    return PlannedRows.of(ArrowStep.of(before, doubled, before.schema))


def written(planned: PlannedRows) -> SinkInput:
    return sink_input_of(Rows(frame=planned.frame), planned, OUT)


def records(output: SinkInput) -> list[dict[str, Any]]:
    batches = chained(output.through, output.frame.toArrow().to_batches())
    return [record for batch in batches for record in batch.to_pylist()]


def test_the_last_step_in_python_is_done_by_the_tasks_that_write(stepped: PlannedRows) -> None:
    assert stepped.step is not None
    output = written(stepped)
    assert output.frame is stepped.step.before
    assert records(output) == [{"key": b"42", "value": b'{"n":42}'}]


def test_a_step_that_others_have_followed_stays_where_it_is(stepped: PlannedRows) -> None:
    output = written(PlannedRows(frame=stepped.frame.select((F.col("n") + 1).alias("n"))))
    assert len(output.through) == 1
    assert records(output) == [{"key": b"43", "value": b'{"n":43}'}]


def test_rows_with_parts_are_written_by_spark(stepped: PlannedRows) -> None:
    output = written(PlannedRows(frame=stepped.frame.withColumn("all.of", F.array("n"))))
    assert not output.through
    assert output.frame.first() == ("42", '{"n":42,"all.of":[42]}', "out")


@pytest.mark.parametrize(
    ("is_fixed", "function"),
    [
        (True, lambda df: df.select("n").mapInArrow(doubled, "n long")),
        (True, lambda df: df.select("n", F.current_timestamp(), F.lit(1).cast("decimal(38, 9)"))),
        (False, lambda df: df),
        (False, lambda df: df.mapInArrow(doubled, "n long")),
        (False, lambda df: df.select(F.udf(len, "int")("text").alias("n"))),
    ],
)
def test_plans_tell_whether_rows_of_any_size_go_to_python(
    spark: SparkSession, is_fixed: bool, function: Any
) -> None:
    frame: DataFrame = function(spark.createDataFrame([(1, "one")], "n long, text string"))
    assert gives_python_fixed_sizes(frame) == is_fixed


def test_a_query_with_rows_of_fixed_sizes_has_no_limit_in_bytes_and_others_keep_theirs(
    spark: SparkSession,
) -> None:
    before = spark.conf.get(BYTES_OF_A_BATCH)
    limits = []
    for columns in (["value"], ["value", "text"]):
        numbers = spark.readStream.format("rate").load().withColumn("text", F.lit("text")).select(*columns)
        with fitting_batches(SinkInput(frame=numbers)):
            query = numbers.writeStream.format("noop").start()
        session: Any = query._jsq.streamingQuery().sparkSessionForStream()
        limits.append(session.conf().get(BYTES_OF_A_BATCH))
        query.stop()
        assert spark.conf.get(BYTES_OF_A_BATCH) == before
    assert limits == [NO_LIMIT, before]


def test_large_texts_go_to_python_in_small_batches(app: App) -> None:
    large = app.stream("large", "text string")

    def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes = pc.binary_length(batch["text"]).cast(pa.int64())
        return pa.record_batch({"size": sizes, "beside": pa.array([batch.num_rows] * batch.num_rows)})

    @app.job(into=app.topic("out"))
    def out() -> Rows:
        return large.map_arrow(measured, "size long, beside long")

    rows = run(out, {"large": [{"text": "x" * 950_000}] * 75})
    assert [row["size"] for row in rows] == [950_000] * 75
    assert max(row["beside"] for row in rows) < 75
