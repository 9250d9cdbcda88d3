"""All aggregates of windows in a job: what Spark computes over the same rows."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, sliding, tumbling
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.streams.windows import Window
from headrace.testing import run

pytestmark = pytest.mark.timeout(300)

SCHEMA = (
    "shop string, item string, amount int, price decimal(10,2), weight double, paid boolean, at timestamp"
)
AGGREGATES = [
    "count(*) AS orders",
    "count(DISTINCT item) AS items",
    "count(DISTINCT item, amount) AS pairs",
    "approx_count_distinct(item) AS about",
    "sum(amount) AS total",
    "sum(price) AS revenue",
    "avg(price) AS mean_price",
    "round(avg(weight), 3) AS mean_weight",
    "sum(amount) / count(*) AS each",
    "stddev(weight) AS deviation",
    "var_pop(amount) AS variance",
    "min(item) AS first_item",
    "max(price) AS dearest",
    "min(at) AS since",
    "min_by(item, price) AS cheapest",
    "max_by(item, amount) AS most",
    "first(item) AS opening",
    "last(amount, true) AS closing",
    "sort_array(collect_list(amount)) AS amounts",
    "sort_array(collect_set(item)) AS kinds",
    "percentile(weight, 0.5) AS middle",
    "percentile(amount, array(0.25, 0.75)) AS quarters",
    "median(amount) AS median",
    "bool_and(paid) AS all_paid",
    "bool_or(paid) AS any_paid",
    "count_if(paid) AS paid_orders",
    "sum(amount) FILTER (WHERE paid) AS paid_total",
    "count(*) FILTER (WHERE amount > 3) AS large",
    "concat(shop, '-', min(item)) AS label",
]
ORDERS = [
    ("x", "tea", 3, "2.50", 0.25, True, 1),
    ("x", "cup", 1, "9.99", 1.5, False, 2),
    ("x", "tea", None, "2.40", 0.75, None, 3),
    ("x", "pot", 7, None, None, True, 4),
    ("y", "jam", 2, "4.00", 0.5, True, 2),
    ("y", "jam", 5, "4.10", 0.5, True, 7),
    ("x", "cup", 4, "9.00", 2.0, True, 8),
]


WINDOWS = {
    "tumbling": tumbling("5 minutes"),
    "hopping": hopping("4 minutes", every="2 minutes"),
    "session": session("2 minutes"),
    "zone": tumbling("1 hour", zone="Europe/Berlin"),
    "sliding": sliding("3 minutes"),
}


def given_rows() -> list[dict[str, Any]]:
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    rows = [dict(zip(names, order, strict=True)) for order in ORDERS]
    for row in rows:
        row["at"] = datetime(2026, 1, 1, 12, row["at"], tzinfo=UTC)
        row["price"] = None if row["price"] is None else Decimal(row["price"])
    return rows


def job_of(window: Window, **stream: Any) -> Job:
    app = App("shop")
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="9 minutes", **stream)

    @app.job(into=app.topic("results"))
    def results() -> Rows:
        return orders.window(window, by="shop").agg(*map(F.expr, AGGREGATES))

    return results


def plain(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        return round(float(value), 6)
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("tumbling", {}),
        ("tumbling", {"metadata": ["partition"]}),
        ("tumbling", {"idle_timeout": "10 minutes"}),
        ("hopping", {"metadata": ["partition"]}),
        ("session", {}),
        ("sliding", {}),
        ("zone", {}),
    ],
)
def test_each_aggregate_is_that_of_spark(kind: str, stream: dict[str, Any], spark: SparkSession) -> None:
    window, rows = WINDOWS[kind], given_rows()
    end = {"shop": "end", "at": datetime(2026, 1, 2, tzinfo=UTC)}
    found = run(job_of(window, **stream), [{"orders": rows[:4]}, {"orders": rows[4:]}, {"orders": [end]}])
    results = [row for row in found if row["shop"] != "end"]
    assert len(results) >= 2
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA)
    spans = spark.createDataFrame(
        [(number, row["shop"], *span_of(row)) for number, row in enumerate(results)],
        "number int, of string, start timestamp, end timestamp",
    )
    is_inside = (
        (F.col("shop") == F.col("of")) & (F.col("at") >= F.col("start")) & (F.col("at") < F.col("end"))
    )
    inside = spans.join(frame, is_inside).orderBy("at").coalesce(1)
    expected = {
        row["number"]: row for row in inside.groupBy("number", "shop").agg(*map(F.expr, AGGREGATES)).collect()
    }
    for number, row in enumerate(results):
        wanted = {name: plain(value) for name, value in expected[number].asDict().items()}
        since = wanted.pop("since")
        del wanted["number"]
        assert {name: plain(row[name]) for name in wanted} == wanted
        assert row["since"].replace(tzinfo=None) == since.replace(tzinfo=None)


def span_of(row: dict[str, Any]) -> tuple[datetime, datetime]:
    """The times of the events that a result is of, from the first to before the last."""
    if "window_start" in row:
        return row["window_start"], row["window_end"]
    second = timedelta(seconds=1)
    return row["at"] - timedelta(minutes=3) + second, row["at"] + second
