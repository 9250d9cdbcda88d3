"""Hopping windows from panes: the rows equal those of windows that are computed one by one."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.streams.windows import Hopping, hopping, tumbling
from headrace.testing import run
from tests.streams.window_jobs import MINUTE_MS
from tests.streams.window_reference import Event, run_reference

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


def job_of(app: App, window: Hopping, *columns: str) -> Job:
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="3 minutes")

    @app.job(into=app.topic("revenue", key=["window_start", "product"]))
    def revenue() -> Rows:
        return orders.window(window, by="product").agg(*map(F.expr, columns))

    return revenue


def at(minute: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)


def order(
    minute: float, amount: int | None, price: float | None = 0.5, product: str = "tea"
) -> dict[str, Any]:
    return {"product": product, "amount": amount, "price": price, "at": at(minute)}


def as_events(rows: list[dict[str, Any]]) -> list[Event]:
    return [Event(round(row["at"].timestamp() * 1000), row["product"], row["amount"] or 0) for row in rows]


def test_hopping_5_every_1_is_the_sum_of_five_one_minute_tumbling_panes(app: App) -> None:
    orders = [order(minute, 10**minute) for minute in range(7)] + [order(60, 0)]
    hops = run(job_of(app, hopping("5 minutes", every="1 minute"), TOTAL), {"orders": orders})
    panes = run_reference(tumbling("1 minute"), [as_events(orders)], 3 * MINUTE_MS).results
    totals = {pane.span.start_ms: pane.total for pane in panes}
    assert len(hops) == 11
    for row in hops:
        minutes = [row["window_start"] + timedelta(minutes=n) for n in range(5)]
        assert row["window_end"] == minutes[-1] + timedelta(minutes=1)
        assert row["total"] == sum(totals.get(round(minute.timestamp() * 1000), 0) for minute in minutes)


def random_parts(random: Random, newest: Sequence[int]) -> list[dict[str, list[dict[str, Any]]]]:
    """Parts that move on in time, each with rows that come too late for some or all of their windows."""
    parts = [
        [
            order(
                random.randint(max(0, (until - 14) * 4), until * 4) / 4,
                random.choice([None, *range(5)]),
                random.choice([None, 0.25, 0.5, 8.0]),
                random.choice(["tea", "cup"]),
            )
            for _ in range(40)
        ]
        for until in newest
    ]
    return [{"orders": part} for part in [*parts[:-1], [*parts[-1], order(1000, 0)]]]


def test_all_aggregates_are_those_of_lists(app: App) -> None:
    window = hopping("10 minutes", every="90 seconds", offset="30 seconds")
    parts = random_parts(Random(1), (8, 16, 25))
    rows = run(job_of(app, window, *ALL), parts, crash=("written", 2))
    # The reference sums up: with a bit for each order it says which of them are in a window.
    orders = [row for part in parts for row in part["orders"]]
    bits = iter(range(len(orders)))
    marked = [
        [event._replace(amount=1 << next(bits)) for event in as_events(part["orders"])] for part in parts
    ]
    outcome = run_reference(window, marked, 3 * MINUTE_MS)
    expected = [
        (datetime.fromtimestamp(span.start_ms / 1000, UTC), key, *aggregates(members))
        for span, key, _, mask in outcome.results
        for members in [[row for bit, row in enumerate(orders) if mask >> bit & 1]]
    ]
    found = [(row["window_start"], row["product"], *list(row.values())[3:]) for row in rows]
    assert sorted(map(repr, map(plain, found))) == sorted(map(repr, map(plain, expected)))
    assert outcome.late


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (row[0].timestamp(), *row[1:])


def aggregates(orders: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What `ALL` comes to."""
    amounts = [row["amount"] for row in orders if row["amount"] is not None]
    prices = [row["price"] for row in orders if row["price"] is not None]
    mean = sum(prices) / len(prices) if prices else None
    least, most = min(prices, default=None), max(amounts, default=None)
    return len(orders), sum(amounts) if amounts else None, len(prices), mean, least, most


def test_an_aggregate_that_is_not_known_is_refused_with_the_way_that_works(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds")
    rows = Rows(frame=frame, event_time="timestamp", watermark_delay="10 seconds")
    windowed = rows.window(hopping("6 minutes", every="2 minutes"))
    with LogicalPlan(spark, "127.0.0.1:1").active(), pytest.raises(Misuse) as refused:
        windowed.agg(F.skewness("value"))
    assert "a window cannot compute skewness" in str(refused.value)
    assert ".df.groupBy(F.window" in str(refused.value)
