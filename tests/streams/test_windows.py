"""All windows that Spark computes, against the reference in plain Python."""

from collections.abc import Sequence
from functools import reduce
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, tumbling
from headrace.streams.windows import Window
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS
from tests.streams.window_jobs import NEW_YEAR_MS, SCHEMA, count_by, inputs, missed, results
from tests.streams.window_reference import Event, run_reference

pytestmark = pytest.mark.timeout(600)

WINDOWS: Sequence[Window] = (
    tumbling("6 seconds"),
    tumbling("6 seconds", offset="2500 ms"),
    hopping("6 seconds", every="4 seconds"),
    hopping("6 seconds", every="2 seconds", offset="1 s"),
    hopping("3 seconds", every="5 seconds", offset="500 ms"),
    session("5 seconds"),
)

times_ms = st.integers(0, 120).map(lambda half_seconds: half_seconds * 500)
events = st.builds(Event, times_ms, st.sampled_from(["a", "b", None]), st.integers(1, 9))
parts = st.lists(st.lists(events, min_size=1, max_size=12), min_size=1, max_size=4)
# Part of the events before 1970, and all of them in our days.
beginnings_ms = st.sampled_from([NEW_YEAR_MS, NEW_YEAR_MS, -30_000])


def check(window: Window, parts: list[list[Event]], beginning_ms: int, crash: tuple[str, int] | None) -> None:
    """Run the job and the reference."""
    moved = [[event._replace(at_ms=event.at_ms + beginning_ms) for event in part] for part in parts]
    expected = run_reference(window, moved, 0)
    job = count_by(App("shop"), window, late_topic="counts.late")
    rows = run(job, inputs(*moved), crash=crash)
    assert results(rows) == sorted(expected.results, key=repr)
    assert missed(rows.late) == sorted(expected.late, key=repr)


# An example takes seconds: to look for a smaller one would take minutes.
QUICK = settings(
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
crashes = st.one_of(st.none(), st.tuples(st.sampled_from(TOPIC_STEPS), st.just(0)))


def random_parts(random: Random) -> list[list[Event]]:
    """Parts in each of which time goes on, with events before 1970, ties, and some that come too late."""
    return [
        [
            Event(
                random.randint(first, first + 80) * 500, random.choice(["a", "b", None]), random.randint(1, 9)
            )
            for _ in range(30)
        ]
        for first in (-50, 0, 60)
    ]


def test_several_windows_at_once_over_disorder_ties_boundaries_and_a_crash(app: App) -> None:
    """One of each kind in one job, whose results and late events are put together."""
    windows = (WINDOWS[1], WINDOWS[3], WINDOWS[4], WINDOWS[5])
    events = app.stream("events", SCHEMA, event_time="at", watermark_delay="0 seconds", max_ahead=None)

    @app.job(into=app.topic("counts", key="window_start"), late_topic="counts.late")
    def counts() -> DataFrame:
        aggregates = F.count(F.lit(1)).alias("events"), F.sum("amount").alias("total")
        frames = [events.window(window, by="key").agg(*aggregates).df for window in windows]
        return reduce(DataFrame.unionByName, frames)

    parts = random_parts(Random(1))
    rows = run(counts, inputs(*parts), crash=("computed", 2))
    expected = [run_reference(window, parts, 0) for window in windows]
    assert results(rows) == sorted((row for each in expected for row in each.results), key=repr)
    assert missed(rows.late) == sorted((late for each in expected for late in each.late), key=repr)
    assert all(each.results and each.late for each in expected)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@given(st.sampled_from(WINDOWS), parts, beginnings_ms, crashes)
@settings(QUICK, max_examples=100)
def test_a_storm_of_parts_and_crashes_changes_nothing(
    spark: SparkSession,
    window: Window,
    parts: list[list[Event]],
    beginning_ms: int,
    crash: tuple[str, int] | None,
) -> None:
    check(window, parts, beginning_ms, crash)
