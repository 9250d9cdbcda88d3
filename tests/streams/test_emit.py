"""When the result of a window is given."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.streams.window_jobs import count_by, counted, inputs

pytestmark = pytest.mark.timeout(600)


def test_a_result_that_changes_is_given_again_and_replaces_the_one_before(app: App) -> None:
    job = count_by(app, hopping("6 minutes", every="3 minutes"), emit="on_window_update")
    rows = run(job, inputs([1, 2], [7, 4]))
    assert [row["events"] for row in rows if counted([row]).keys() == {(0, 6)}] == [2, 3]
    assert counted(rows) == {(-3, 3): 2, (0, 6): 3, (3, 9): 2, (6, 12): 1}


WINDOW = tumbling("1 minute")
FOLLOWING: dict[str, Callable[[Rows], object]] = {
    "a window": lambda rows: rows.window(WINDOW),
    "a join": lambda rows: rows.join(rows, on="window_start", within="1 minute"),
    r"deduplicate\(\)": lambda rows: rows.deduplicate("window_start", within="1 hour"),
}


@pytest.mark.parametrize("operator", FOLLOWING)
def test_results_that_are_emitted_again_are_refused_by_what_would_count_them_again(
    spark: SparkSession, operator: str
) -> None:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    rows = Rows(frame=frame, event_time="timestamp", watermark_delay="1 minute")
    with LogicalPlan(spark, "127.0.0.1:1").active():
        changing = rows.window(WINDOW).agg(F.count("*").alias("n"), emit="on_window_update")
        with pytest.raises(Misuse, match=f"{operator} cannot follow a window that emits its results again"):
            FOLLOWING[operator](changing)
