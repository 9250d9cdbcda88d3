"""The user's own functions on Arrow batches."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams.explanation import explain
from headrace.streams.functions import _fitted
from headrace.streams.rows import Rows
from headrace.streams.stream import Stream
from headrace.testing import run

pytestmark = pytest.mark.timeout(240)

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def readings(app: App) -> Stream:
    return app.stream(
        "readings",
        "device string, celsius double, at timestamp",
        event_time="at",
        watermark_delay="10 seconds",
    )


def reading(device: str, celsius: float, second: int) -> dict[str, Any]:
    return {"device": device, "celsius": celsius, "at": START + timedelta(seconds=second)}


def test_a_function_gives_any_number_of_rows_and_time_goes_on(app: App, readings: Stream) -> None:
    def fahrenheit(batch: pa.RecordBatch) -> pa.Table:
        """Each reading of a press twice, and none of others."""
        batch = batch.filter(pc.equal(batch["device"], "press"))
        degrees = pc.add(pc.multiply(batch["celsius"], 1.8), 32)
        made = pa.table({"at": batch["at"], "fahrenheit": degrees})
        return pa.concat_tables([made, made])

    @app.job(into=app.topic("out"))
    def out() -> Rows:
        made = readings.map_arrow(fahrenheit, "fahrenheit double, at timestamp")
        return made.transform(
            lambda df: (
                df.groupBy(F.window("at", "1 minute"))
                .agg(F.sum("fahrenheit").alias("sum"))
                .select(F.col("window.start").alias("at"), "sum")
            )
        )

    inputs = {"readings": [reading("press", 100, 0), reading("lathe", 1, 1), reading("press", 0, 90)]}
    assert run(out, inputs) == [{"at": START, "sum": 424.0}]


def test_an_error_of_the_function_is_one_sentence_with_its_line(app: App, readings: Stream) -> None:
    def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("too hot")

    @app.job(into=app.topic("out"))
    def out() -> Rows:
        return readings.map_arrow(broken, "x int")

    with pytest.raises(Exception, match="too hot") as caught:
        run(out, {"readings": [reading("press", 1, 0)]})
    assert explain(caught.value).startswith("ValueError: too hot (test_functions.py, line ")


WANTED = pa.schema([("x", pa.int32()), ("y", pa.string())])


def test_results_are_brought_into_the_order_and_types_of_the_schema() -> None:
    table = pa.table({"y": ["a", "b"], "x": pa.array([1, None], pa.int64())})
    (fitted,) = _fitted(table, WANTED)
    assert fitted.schema == WANTED
    assert fitted.to_pylist() == [{"x": 1, "y": "a"}, {"x": None, "y": "b"}]
    assert _fitted(fitted, WANTED)[0].equals(fitted)


def test_results_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Misuse, match=r"returned int: it has to return a pyarrow.RecordBatch or"):
        _fitted(1, WANTED)
    with pytest.raises(Misuse, match="returned the columns 'x', and its schema says 'x', 'y'"):
        _fitted(pa.table({"x": [1]}), WANTED)
    with pytest.raises(Misuse, match="returned x string, y int64, which cannot become the x int32, y string"):
        _fitted(pa.table({"x": ["one"], "y": [1]}), WANTED)


def test_a_schema_that_is_none_is_refused_and_time_that_is_left_out_is_gone(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load()
    rows = Rows(
        frame=frame.withWatermark("timestamp", "1 second"), event_time="timestamp", watermark_delay="1 second"
    )
    with pytest.raises(Misuse, match="'x integr' is not a schema"):
        rows.map_arrow(lambda batch: batch, "x integr")
    with pytest.raises(Misuse, match="names no columns"):
        rows.map_arrow(lambda batch: batch, "int")
    with LogicalPlan(spark, "127.0.0.1:1").active():
        assert rows.map_arrow(lambda batch: batch, "x int").event_time is None
        assert rows.map_arrow(lambda batch: batch, "timestamp string").event_time is None
        assert rows.map_arrow(lambda batch: batch, "timestamp timestamp").event_time == "timestamp"
