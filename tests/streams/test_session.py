"""Sessions: events of a key that follow each other."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, session
from headrace.streams.rows import Rows
from headrace.testing import JobRows, run
from tests.streams.window_jobs import (
    FAR,
    MINUTE_MS,
    SCHEMA,
    at_minute,
    count_by,
    counted,
    inputs,
    missed,
    results,
)
from tests.streams.window_reference import run_reference

pytestmark = pytest.mark.timeout(600)

GAP_5 = session("5 minutes")
PARTS = [
    [
        *[at_minute(minute, "example") for minute in (1, 3, 10, 12)],
        *[at_minute(10, "a", 1), at_minute(20, "a", 2), at_minute(16, "b", 4)],
    ],
    # The watermark is at 10. Of a this joins two that were apart; of b one comes when the one before ends.
    [at_minute(15, "a", 8), at_minute(21, "b", 16), at_minute(21, "b", 32), at_minute(40, "c", 64)],
    # The watermark is at 30: what began at 25 is over, and what began at 25.1 is not.
    [
        at_minute(26.1, "b", 128),
        at_minute(25, "d", 256),
        at_minute(25.1, "d", 512),
        at_minute(FAR, "c", 1024),
    ],
]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> JobRows:
    """All keys are in one run."""
    job = count_by(App("shop"), GAP_5, watermark_delay="10 minutes", late_topic="counts.late")
    return run(job, inputs(*PARTS), spark=spark)


def of_key(rows: JobRows, key: str) -> dict[tuple[float, float], int]:
    return counted([row for row in rows if row["key"] == key])


def test_session_with_gap_5_of_events_at_1_3_10_12(rows: JobRows) -> None:
    assert of_key(rows, "example") == {(1, 8): 2, (10, 17): 2}


def test_sessions_grow_together_over_batches_and_keys_have_their_own(rows: JobRows) -> None:
    assert of_key(rows, "a") == {(10, 25): 3}
    assert of_key(rows, "b") == {(16, 26): 3, (26.1, 31.1): 1}
    assert of_key(rows, "c") == {(40, 45): 1}
    assert results(rows) == sorted(run_reference(GAP_5, PARTS, 10 * MINUTE_MS).results, key=repr)


def test_a_late_event_is_judged_by_the_session_that_it_would_be_alone(rows: JobRows) -> None:
    assert of_key(rows, "d") == {(25.1, 30.1): 1}
    assert missed(rows.late) == [((at_minute(25).at_ms, at_minute(30).at_ms), at_minute(25, "d", 256))]


def test_sessions_that_the_source_sums_up_are_the_same_also_after_a_crash(spark: SparkSession) -> None:
    job = count_by(App("shop"), GAP_5, watermark_delay="10 minutes")
    expected = sorted(run_reference(GAP_5, PARTS, 10 * MINUTE_MS).results, key=repr)
    assert results(run(job, inputs(*PARTS), spark=spark, crash=("computed", 1))) == expected


def test_aggregates_without_parts_are_sparks_own_sessions(spark: SparkSession) -> None:
    app = App("shop")
    events = app.stream("events", SCHEMA, event_time="at", watermark_delay="10 minutes")

    @app.job(into=app.topic("sets"))
    def sets() -> Rows:
        amounts = F.sort_array(F.collect_set("amount")).alias("amounts")
        return events.window(GAP_5, by="key").agg(amounts)

    rows = run(sets, inputs(*PARTS), spark=spark)
    assert [row["amounts"] for row in rows if row["key"] == "a"] == [[1, 2, 8]]
