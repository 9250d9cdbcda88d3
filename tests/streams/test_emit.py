"""When the result of a window is given."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.streams.building import Building
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.streams.window_jobs import count_by, counted, inputs

pytestmark = pytest.mark.timeout(600)


def test_a_result_that_changes_is_given_again_and_replaces_the_one_before(app: App) -> None:
    job = count_by(app, hopping("6 minutes", every="3 minutes"), emit="change")
    rows = run(job, inputs([1, 2], [7, 4]))
    assert [row["events"] for row in rows if counted([row]).keys() == {(0, 6)}] == [2, 3]
    assert counted(rows) == {(-3, 3): 2, (0, 6): 3, (3, 9): 2, (6, 12): 1}


def test_a_time_between_results_becomes_the_time_between_batches(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    rows = Rows(frame=frame, event_time="timestamp", lateness="10 seconds")
    with Building(spark, "127.0.0.1:1").active():
        windowed = rows.window(tumbling("1 minute"))
        every = windowed.agg(F.count("*").alias("n"), emit="10 s")
        closed = windowed.agg(F.count("*").alias("n"))
    assert (every.mode, every.every) == ("update", "10000 milliseconds")
    assert (closed.mode, closed.every, closed.event_time) == ("append", None, "window_end")
