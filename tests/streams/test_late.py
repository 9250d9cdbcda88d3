"""Events that come for a window whose result was given: dropped and counted, kept aside, or a correction."""

from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, tumbling
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.streams.window_jobs import FAR, at_minute, count_by, counted, inputs, missed, results
from tests.streams.window_reference import run_reference, spans_of

pytestmark = pytest.mark.timeout(600)

LATE = ([1, 7], [5])
"""The window [0, 6) has closed when an event at 5 arrives."""


def test_a_late_event_is_dropped_and_counted(app: App) -> None:
    rows = run(count_by(app, tumbling("6 minutes")), inputs(*LATE))
    assert counted(rows) == {(0, 6): 1}
    assert (rows.dropped, rows.late) == (1, [])


def test_a_late_event_goes_to_the_late_topic(app: App) -> None:
    rows = run(count_by(app, tumbling("6 minutes"), late_topic="counts.late"), inputs(*LATE))
    assert counted(rows) == {(0, 6): 1}
    assert rows.late == [
        {
            "window_start": "2026-01-01T00:00:00.000000Z",
            "window_end": "2026-01-01T00:06:00.000000Z",
            "key": "a",
            "amount": 1,
            "at": "2026-01-01T00:05:00.000000Z",
        }
    ]


def test_a_late_event_corrects_the_result(app: App) -> None:
    """The first one is given when the window closes; what comes more than an hour later goes aside."""
    window = hopping("6 minutes", every="3 minutes")
    job = count_by(app, window, allowed_lateness="1 hour", late_topic="counts.late")
    rows = run(job, inputs([1, 2, 7], [5, 80], [4]), crash=("computed", 2))
    given = [(row["events"], row["total"]) for row in rows if counted([row]).keys() == {(0, 6)}]
    assert given == [(2, 2), (3, 3)]
    assert counted(rows) == {(-3, 3): 2, (0, 6): 3, (3, 9): 2, (6, 12): 1}
    assert missed(rows.late) == [(span, at_minute(4)) for span in spans_of(window, at_minute(4).at_ms)]


def test_each_event_of_a_window_of_panes_is_in_its_result_or_among_the_late(app: App) -> None:
    window = hopping("8 minutes", every="2 minutes")
    parts = [
        [at_minute(1, "a", 1), at_minute(8, "a", 2)],
        # Late for windows that end by 8 and in time for others; twice the same; another key.
        [at_minute(5, "a", 4), at_minute(5, "a", 4), at_minute(1, "b", 8), at_minute(20, "b", 16)],
        # Late for all, for some, and for none.
        [at_minute(8.9, "b", 32), at_minute(14, None, 64), at_minute(19, None, 128), at_minute(FAR)],
    ]
    rows = run(count_by(app, window, late_topic="counts.late"), inputs(*parts), crash=("computed", 2))
    expected = run_reference(window, parts, 0)
    assert results(rows) == sorted(expected.results, key=repr)
    assert missed(rows.late) == sorted(expected.late, key=repr)
    assert len(expected.late) > 6


def test_batches_that_follow_each_other_at_once_lose_nothing_and_count_nothing_twice(app: App) -> None:
    minutes = (1, 9, 2, 14, 3, 20, 4, 13, FAR)
    events = [at_minute(minute, amount=1 << number) for number, minute in enumerate(minutes)]
    job = count_by(app, hopping("6 minutes", every="3 minutes"), late_topic="counts.late", max_records=2)
    rows = run(job, inputs(events))
    everything = run_reference(hopping("6 minutes", every="3 minutes"), [events], 0)
    totals = {span: total for span, _, _, total in everything.results}
    for span, _, _, total in results(rows):
        totals[span] -= total
    for span, event in missed(rows.late):
        totals[span] -= event.amount
    assert set(totals.values()) == {0}
    assert rows.late


def test_late_events_are_found_behind_the_users_own_steps_and_bad_ones_stay_dead(app: App) -> None:
    events = app.stream(
        "events", "key string, amount long, at timestamp", event_time="at", watermark_delay="1 s"
    )

    @app.job(into=app.topic("counts"), late_topic="counts.late")
    def counts() -> Rows:
        doubled = events.transform(
            lambda df: df.filter("amount > 1").withColumn("amount", F.expr("amount * 2"))
        )
        minutes = doubled.window(tumbling("6 minutes"), by="key").agg(F.sum("amount").alias("total"))
        return minutes.window(tumbling("12 minutes")).agg(F.sum("total").alias("total"))

    first, second = inputs(
        [at_minute(1, "a", 2), at_minute(8)], [at_minute(2), at_minute(3, "b", 5), at_minute(FAR)]
    )
    second["events"].append(b"garbled")  # type: ignore[arg-type]
    rows = run(counts, [first, second])
    assert [row["total"] for row in rows] == [4]
    assert [(row["key"], row["amount"], row["at"][11:16]) for row in rows.late] == [("b", 10, "00:03")]
    assert [dead["value"] for dead in rows.dead] == [b"garbled"]


@pytest.fixture
def rows(spark: SparkSession) -> Rows:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    return Rows(frame=frame, event_time="timestamp", watermark_delay="10 seconds")


WRONG: dict[str, tuple[Any, Any]] = {
    "no window that rows are late for": ({"late_topic": "x.late"}, lambda rows: rows),
    "is not for sessions": (
        {"allowed_lateness": "1 hour"},
        lambda rows: rows.window(session("1 s")).agg(F.max("value")),
    ),
    "has allowed_lateness=, but no window that rows are late for": (
        {"allowed_lateness": timedelta(hours=1)},
        lambda rows: (
            rows.transform(lambda df: df.dropDuplicatesWithinWatermark(["value"]))
            .window(tumbling("1 minute"))
            .agg(F.max("value").alias("most"))
        ),
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_done_with_late_rows_is_refused(spark: SparkSession, rows: Rows, message: str) -> None:
    options, make = WRONG[message]
    app = App("shop")
    job = app.job(into=app.topic("counts"), name="counts", **options)(lambda: make(rows))
    with pytest.raises(Misuse, match=message):
        job.build(spark, "127.0.0.1:1")


def test_a_late_topic_needs_a_name_that_topics_can_have() -> None:
    app = App("shop")
    with pytest.raises(Misuse, match="cannot be the topic's name"):
        app.job(into=app.topic("counts"), name="counts", late_topic="too late")(lambda: None)
