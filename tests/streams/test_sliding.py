"""Sliding windows: for each event what its key's events of (t - size, t] come to."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.errors import Misuse
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.streams.windows import Sliding, hopping, sliding, tumbling
from headrace.testing import run
from tests.streams.window_reference import Event, moved, sliding_reference

pytestmark = pytest.mark.timeout(300)

MINUTE_MS = 60_000
SCHEMA = "user string, amount long, price double, at timestamp"
COUNT = "count(*) AS events"


def job_of(
    app: App,
    window: Any,
    *columns: Column | str,
    by: str | Sequence[str] = "user",
    late_topic: str | None = None,
) -> Job:
    clicks = app.stream("clicks", SCHEMA, event_time="at", watermark_delay="10 minutes")

    @app.job(into=app.topic("slides", key="user" if by else ()), late_topic=late_topic)
    def slides() -> Rows:
        return clicks.window(window, by=by).agg(*map(as_column, columns))

    return slides


def as_column(column: Column | str) -> Column:
    return F.expr(column) if isinstance(column, str) else column


def at(minute: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


def click(
    minute: float, user: str | None = "ann", amount: int | None = 1, price: float = 0.1
) -> dict[str, Any]:
    return {"user": user, "amount": amount, "price": price, "at": at(minute)}


def test_sliding_6_events_at_1_3_8_give_counts_1_2_2(app: App) -> None:
    job = job_of(app, sliding("6 minutes"), COUNT)
    rows = run(job, {"clicks": [click(8), click(1), click(3), click(100)]})
    assert rows == [
        {"at": at(1), "user": "ann", "events": 1},
        {"at": at(3), "user": "ann", "events": 2},
        {"at": at(8), "user": "ann", "events": 2},
    ]


def test_all_aggregates_at_once_over_batches_and_a_crash(app: App) -> None:
    columns: list[Column | str] = [
        COUNT,
        F.count("amount").alias("amounts"),
        F.sum("amount").alias("total"),
        F.avg("amount").alias("mean"),
        F.min("amount").alias("least"),
        F.max(F.col("price") * 2).alias("dearest"),
        F.sum("price").alias("spent"),
    ]
    job = job_of(app, sliding("6 minutes"), *columns)
    parts = [
        {"clicks": [click(1, amount=None), click(3, amount=4, price=0.5), click(3, "bob", 7)]},
        {
            "clicks": [
                *[click(8, amount=2, price=0.25), click(3, amount=10, price=0.25)],
                *[click(7, None), click(100)],
            ]
        },
    ]
    rows = run(job, parts, crash=("written", 2))
    found = sorted((tuple(row.values()) for row in rows), key=lambda row: (row[0], str(row[1]), row[2]))
    assert found == [
        (at(1), "ann", 1, 0, None, None, None, 0.2, 0.1),
        *[(at(3), "ann", 3, 2, 14, 7.0, 4, 1.0, 0.1 + 0.5 + 0.25)] * 2,
        (at(3), "bob", 1, 1, 7, 7.0, 7, 0.2, 0.1),
        (at(7), None, 1, 1, 1, 1.0, 1, 0.2, 0.1),
        (at(8), "ann", 3, 3, 16, 16 / 3, 2, 1.0, 0.25 + 0.5 + 0.25),
    ]


EVENTS = st.builds(
    Event,
    at_ms=st.integers(1, 40).map(lambda minute: minute * MINUTE_MS),
    key=st.sampled_from(["ann", "bob", None]),
    amount=st.integers(-5, 5),
)
PARTS = st.lists(st.lists(EVENTS, max_size=15), min_size=1, max_size=3)
CRASHES = st.sampled_from([None, ("begun", 1), ("computed", 1), ("marked", 0), ("committed", 1)])


def check(window: Sliding, parts: list[list[Event]], crash: tuple[str, int] | None) -> int:
    """Run the job and the reference; gives how many events were late."""
    job = job_of(App("shop"), window, COUNT, F.sum("amount").alias("total"), late_topic="slides.late")
    parts = [*parts[:-1], [*parts[-1], Event(1000 * MINUTE_MS, "end", 0)]]
    accepted, late, watermark_ms = [], [], 0
    for part in parts:
        accepted += [event for event in part if event.at_ms > watermark_ms]
        late += [event for event in part if event.at_ms <= watermark_ms]
        watermark_ms = moved(watermark_ms, part, 10 * MINUTE_MS)
    expected = [
        (event.at_ms, event.key, count, total)
        for event, count, total in reference(window, accepted)
        if event.at_ms <= watermark_ms
    ]
    rows = run(job, [{"clicks": [as_click(event) for event in part]} for part in parts], crash=crash)
    found = [(row["at"].timestamp() * 1000, row["user"], row["events"], row["total"]) for row in rows]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert sorted(map(missed, rows.late)) == sorted(
        (event.at_ms - window.size_ms, event.at_ms, repr(event.key), event.amount) for event in late
    )
    return len(late)


def missed(row: dict[str, Any]) -> tuple[int, int, str, int]:
    """A row of the late topic: the window that an event missed, and the event."""
    start, end, time = (datetime.fromisoformat(row[name]) for name in ("window_start", "window_end", "at"))
    assert time == end
    return (*(round(each.timestamp() * 1000) for each in (start, end)), repr(row["user"]), row["amount"])


def test_whatever_comes_is_in_its_results_or_late_as_lists_say(app: App) -> None:
    random = Random(1)
    parts = [
        [
            Event(
                random.randint(1, until) * MINUTE_MS,
                random.choice(["ann", "bob", None]),
                random.randint(-5, 5),
            )
            for _ in range(30)
        ]
        for until in (25, 40)
    ]
    assert check(Sliding(size="6 minutes"), parts, crash=("computed", 2)) > 5


@pytest.mark.soak
@pytest.mark.timeout(1800)
@given(parts=PARTS, minutes=st.sampled_from([1, 6, 30]), crash=CRASHES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_storm_of_parts_and_crashes_changes_nothing(
    app: App, parts: list[list[Event]], minutes: int, crash: tuple[str, int] | None
) -> None:
    check(Sliding(size=f"{minutes} minutes"), parts, crash)


def as_click(event: Event) -> dict[str, Any]:
    time = datetime.fromtimestamp(event.at_ms / 1000, UTC)
    return {"user": event.key, "amount": event.amount, "price": 1.0, "at": time}


def reference(window: Sliding, events: list[Event]) -> list[tuple[Event, int, int]]:
    """By key, for keys that are null have no order."""
    keys = {event.key for event in events}
    return [row for key in keys for row in sliding_reference(window, [e for e in events if e.key == key])]


def test_results_can_go_into_another_window(app: App) -> None:
    clicks = app.stream("clicks", SCHEMA, event_time="at", watermark_delay="10 minutes")

    @app.job(into=app.topic("peaks"))
    def peaks() -> Rows:
        slides = clicks.window(sliding("6 minutes"), by="user").agg(F.expr(COUNT))
        return slides.window(tumbling("10 minutes"), by="user").agg(F.max("events").alias("peak"))

    rows = run(peaks, {"clicks": [click(minute) for minute in (1, 3, 8, 12, 100)]})
    assert [(row["window_start"], row["peak"]) for row in rows] == [(at(0), 2), (at(10), 2)]


def visit(minute: int, user: str = "ann") -> dict[str, Any]:
    return {"user": user, "at": at(minute)}


def test_results_come_when_time_moves_on_though_their_own_stream_is_silent(app: App) -> None:
    """Those of sliding windows, and of hopping ones behind them; the clicks come all with the first visit."""
    options: dict[str, Any] = {"event_time": "at", "watermark_delay": "10 minutes"}
    clicks = app.stream("clicks", SCHEMA, **options)
    visits = app.stream("visits", "user string, at timestamp", max_records=1, **options)

    @app.job(into=app.topic("both"))
    def both() -> Rows:
        slides = clicks.window(sliding("6 minutes"), by="user").agg(F.expr(COUNT))
        hops = slides.window(hopping("12 minutes", every="3 minutes"), by="user").agg(
            F.expr("sum(events) AS events")
        )
        return hops.join(visits, on="user", within="2 hours")

    visited = [(None, visit(minute), at(minute)) for minute in (2, 15, 70)]
    rows = run(both, {"clicks": [click(1), click(20), click(50)], "visits": visited})
    assert {row["window_end"] for row in rows} == {at(minute) for minute in (3, 6, 9, 12, 21, 24, 27, 30)}
    assert len(rows) == 8 * 3, "each result with each visit"


def test_rows_that_a_join_held_back_are_not_late_for_sliding_and_hopping_windows(app: App) -> None:
    """The click of minute 5 comes out of the join when the watermark has passed it by half an hour."""
    clicks = app.stream("clicks", SCHEMA, event_time="at", watermark_delay="0 seconds")
    visits = app.stream("visits", "user string, at timestamp", event_time="at", watermark_delay="0 seconds")

    @app.job(into=app.topic("hops"), late_topic="hops.late")
    def hops() -> Rows:
        joined = clicks.join(visits, on="user", within="30 minutes", how="left")
        slides = joined.window(sliding("6 minutes"), by="user").agg(F.expr(COUNT))
        return slides.window(hopping("8 minutes", every="2 minutes"), by="user").agg(
            F.max("events").alias("peak")
        )

    parts = [
        {"clicks": [click(1), click(5), click(20, "bob")], "visits": [visit(20, "bob")]},
        {"clicks": [click(33, "cid")], "visits": [visit(33, "cid"), visit(34)]},
        {"clicks": [click(200)], "visits": [visit(200)]},
    ]
    rows = run(hops, parts)
    found = {(row["user"], row["window_start"]): row["peak"] for row in rows}
    assert found == {("ann", at(minute)): 2 if minute >= -2 else 1 for minute in range(-6, 6, 2)} | {
        (user, at(minute)): 1
        for user, first in (("bob", 14), ("cid", 26))
        for minute in range(first, first + 8, 2)
    }
    assert (rows.late, rows.dropped, len(found)) == ([], 0, len(rows))


@pytest.mark.parametrize(
    "column", ["skewness(amount)", "sum(DISTINCT amount)", "corr(amount, amount)", "max(struct(amount))"]
)
def test_aggregates_that_it_does_not_know_are_refused(app: App, column: str) -> None:
    with pytest.raises(Misuse, match=r"sliding\('6 minutes'\) cannot compute .* It computes count, sum, avg"):
        run(job_of(app, sliding("6 minutes"), column), {"clicks": []})


def test_aggregates_of_lists_conditions_and_expressions(app: App) -> None:
    columns = ["collect_list(amount) AS all", "sum(amount) FILTER (WHERE amount > 1) / count(*) AS share"]
    clicks = [{"user": "a", "amount": n, "at": at(minute)} for n, minute in ((1, 1), (3, 3), (2, 8), (9, 90))]
    rows = run(job_of(app, sliding("6 minutes"), *columns), {"clicks": clicks})
    assert [(row["all"], row["share"]) for row in rows] == [([1], None), ([1, 3], 1.5), ([3, 2], 2.5)]


def test_two_columns_of_one_name_are_refused(app: App) -> None:
    with pytest.raises(Misuse, match="would be named 'user'"):
        run(job_of(app, sliding("6 minutes"), "count(*) AS user"), {"clicks": []})


def test_results_can_be_put_together_with_others_and_into_one_task(app: App) -> None:
    clicks = app.stream("clicks", SCHEMA, event_time="at", watermark_delay="10 minutes")

    @app.job(into=app.topic("doubled", partitions=1))
    def doubled() -> Rows:
        slides = clicks.window(sliding("6 minutes"), by="user").agg(F.expr(COUNT))
        return slides.transform(lambda df: df.union(df).coalesce(1))

    parts = [{"clicks": [click(minute) for minute in some]} for some in ((1, 3), (8, 100))]
    assert sorted(row["events"] for row in run(doubled, parts)) == [1, 1, 2, 2, 2, 2]
