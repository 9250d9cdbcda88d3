"""Tumbling windows: each begins where the one before ends."""

import doctest
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, sliding, tumbling
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams import windows
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.streams.window_jobs import FAR, at_minute, count_by, counted, inputs, results
from tests.streams.window_reference import run_reference

pytestmark = pytest.mark.timeout(600)


def test_tumbling_6_puts_every_event_into_exactly_one_window(app: App) -> None:
    """By key, of which null is one; and an event without a time is in none."""
    window = tumbling("6 minutes")
    minutes = (0, 5, 5.99, 6, 11, 12, 17)
    events = [at_minute(minute, key, 1 << n) for n, minute in enumerate(minutes) for key in ("a", None)]
    (part,) = inputs([*events, at_minute(FAR)])
    part["events"].append({"key": "a", "amount": 1, "at": None})
    rows = run(count_by(app, window), part)
    assert results(rows) == sorted(run_reference(window, [[*events, at_minute(FAR)]], 0).results, key=repr)
    assert counted(rows) == {(0, 6): 3, (6, 12): 2, (12, 18): 2}


def test_an_hour_is_the_sum_of_its_sixty_minutes_with_steps_of_the_user_between(app: App) -> None:
    events = app.stream(
        "events", "key string, amount long, at timestamp", event_time="at", watermark_delay="1 s"
    )

    @app.job(into=app.topic("hours", key="window_start"))
    def hours() -> Rows:
        small = events.transform(lambda df: df.filter("amount < 9"))
        minutes = small.window(tumbling("1 minute"), by="key").agg(F.sum("amount").alias("amount"))
        seen = minutes.transform(lambda df: df.filter("amount > 0"))
        return seen.window(tumbling("1 hour")).agg(
            F.count("*").alias("minutes"), F.sum("amount").alias("total")
        )

    left_out = [at_minute(1, "a", 9), at_minute(2, "a", 0)]
    rows = run(hours, inputs([0, 0.5, 30, 59, 59.9, 60, 61, FAR, *left_out]))
    assert list(rows[0]) == ["window_start", "window_end", "minutes", "total"]
    found = sorted((row["window_start"], row["minutes"], row["total"]) for row in rows)
    assert [row[1:] for row in found] == [(3, 5), (2, 2)]


MISTAKES: dict[str, Callable[[], object]] = {
    "is at least a millisecond": lambda: tumbling("0 minutes"),
    "is not below '1 minute'": lambda: tumbling("1 minute", offset="1 minute"),
    "is not a duration": lambda: hopping("soon", every="1 minute"),
    "gap of sessions is at least": lambda: session("0 s"),
    "size of a window is at least": lambda: sliding("0 s"),
    "zone 'Berlin' is not known": lambda: tumbling("1 day", zone="Berlin"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_window_that_makes_no_sense_is_refused_when_it_is_made(message: str) -> None:
    with pytest.raises(Misuse, match=message):
        MISTAKES[message]()


WRONG: dict[str, Callable[[Rows], object]] = {
    "write tumbling": lambda rows: rows.window("1 minute"),  # type: ignore[arg-type]
    "when its events happened": lambda rows: Rows(frame=rows.frame).window(tumbling("1 minute")),
    "there is no such column. The columns are timestamp, value": lambda rows: rows.window(
        tumbling("1 minute"), by="product"
    ),
    "is the time of the event": lambda rows: rows.window(tumbling("1 minute"), by="timestamp"),
    "needs to know what to compute": lambda rows: rows.window(tumbling("1 minute")).agg(),
    "would be named 'value'": lambda rows: totals(rows, "value"),
    "would be named 'window_end'": lambda rows: totals(rows, "window_end"),
    "has this name. Rename yours": lambda rows: totals(rows, "total").window(
        tumbling("1 hour"), by="window_start"
    ),
    "use on_window_close or on_window_update": lambda rows: totals(rows, "total", emit="now and then"),
    "is not for sessions": lambda rows: rows.window(session("1 s")).agg(
        F.max("value"), emit="on_window_update"
    ),
}


def totals(rows: Rows, name: str, **options: Any) -> Rows:
    return rows.window(tumbling("1 minute"), by="value").agg(F.sum("value").alias(name), **options)


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_computed_is_refused_with_the_way_out(spark: SparkSession, message: str) -> None:
    plan = LogicalPlan(spark, "127.0.0.1:1")
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    with plan.active(), pytest.raises(Misuse, match=message):
        WRONG[message](Rows(frame=frame, event_time="timestamp", watermark_delay="10 seconds"))


@pytest.mark.parametrize("module", [windows])
def test_the_examples_of_a_module_hold(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
