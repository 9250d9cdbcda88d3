"""Hopping windows from panes: the same rows as Spark's own windows give."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.streams.job import Job
from headrace.streams.native_windows import aggregate_natively
from headrace.streams.panes import hop_by_panes
from headrace.streams.rows import Rows
from headrace.streams.windows import Hopping, hopping, tumbling
from headrace.testing import run

pytestmark = pytest.mark.timeout(300)

SCHEMA = "product string, amount long, price double, at timestamp"
TOTAL = "sum(amount) AS total"
ALL = [
    "count(*) AS orders",
    TOTAL,
    "count(price) AS prices",
    "avg(price) AS mean",
    "min(price) AS cheapest",
    "max(amount) AS most",
]


def job_of(app: App, window: Hopping, *columns: str, native: bool = False) -> Job:
    orders = app.stream("orders", SCHEMA, event_time="at", lateness="3 minutes")

    @app.job(into=app.topic("revenue", key=["window_start", "product"]))
    def revenue() -> Rows:
        aggregates = list(map(F.expr, columns))
        if native:
            return aggregate_natively(orders.rows, window, ("product",), aggregates)
        made = hop_by_panes(orders.rows, window, ("product",), aggregates)
        assert made is not None
        return made

    return revenue


def at(minute: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


def order(
    minute: float, amount: int | None, price: float | None = 0.5, product: str = "tea"
) -> dict[str, Any]:
    return {"product": product, "amount": amount, "price": price, "at": at(minute)}


def test_hopping_5_every_1_is_the_sum_of_five_one_minute_tumbling_panes(app: App) -> None:
    inputs = {"orders": [order(minute, 10**minute) for minute in range(7)] + [order(60, 0)]}
    hops = run(job_of(app, hopping("5 minutes", every="1 minute"), TOTAL), inputs)
    panes = run(job_of(App("panes"), tumbling("1 minute"), TOTAL, native=True), inputs)
    totals = {row["window_start"]: row["total"] for row in panes}
    assert len(hops) == 11
    for row in hops:
        minutes = [row["window_start"] + timedelta(minutes=n) for n in range(5)]
        assert row["window_end"] == minutes[-1] + timedelta(minutes=1)
        assert row["total"] == sum(totals.get(minute, 0) for minute in minutes)


def random_parts(random: Random) -> list[dict[str, list[dict[str, Any]]]]:
    """Parts that move on in time, each with rows that come too late for some or all of their windows."""
    parts = []
    for newest in (8, 15, 16, 40):
        rows = [
            order(
                random.randint(max(0, (newest - 14) * 4), newest * 4) / 4,
                random.choice([None, *range(5)]),
                random.choice([None, 0.25, 0.5, 8.0]),
                random.choice(["tea", "cup"]),
            )
            for _ in range(25)
        ]
        parts.append({"orders": rows})
    return [*parts, {"orders": [order(1000, 0)]}]


@pytest.mark.parametrize(
    ("window", "crash"),
    [
        (hopping("5 minutes", every="1 minute"), ("written", 2)),
        (hopping("10 minutes", every="90 seconds", offset="30 seconds"), None),
    ],
    ids=["whole", "uneven"],
)
def test_the_rows_are_those_of_sparks_own_window(
    app: App, window: Hopping, crash: tuple[str, int] | None
) -> None:
    parts = random_parts(Random(window.size_ms))
    rows = run(job_of(app, window, *ALL), parts, crash=crash)
    native = run(job_of(App("native"), window, *ALL, native=True), parts)
    assert sorted(map(repr, rows)) == sorted(map(repr, native))


def test_little_overlap_and_other_aggregates_are_left_to_spark(app: App) -> None:
    orders = app.stream("orders", SCHEMA, event_time="at", lateness="3 minutes")
    made: list[Rows | None] = []

    @app.job(into=app.topic("out"))
    def out() -> Rows:
        made.append(hop_by_panes(orders.rows, hopping("6 minutes", every="2 minutes"), (), [F.expr(TOTAL)]))
        made.append(
            hop_by_panes(orders.rows, hopping("6 minutes", every="1 minute"), (), [F.collect_set("amount")])
        )
        return orders.window(hopping("6 minutes", every="1 minute")).agg(F.expr(TOTAL), F.first("product"))

    run(out, {"orders": []})
    assert made
    assert set(made) == {None}
