"""Results that change: what follows them takes back what it made of a result that is replaced."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, tumbling
from headrace.engine.logical import LogicalPlan
from headrace.engine.planner import Planner
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.streams.stream import Stream
from headrace.testing import JobRows, run

pytestmark = pytest.mark.timeout(600)

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = tumbling("1 minute")
KEY = ["window_start", "product"]
SCHEMA = "product string, amount long, at timestamp"


def order(product: str, amount: int, second: int = 0) -> dict[str, Any]:
    return {"product": product, "amount": amount, "at": START + timedelta(seconds=second)}


def stream(app: App, topic: str = "orders") -> Stream:
    return app.stream(topic, SCHEMA, event_time="at", watermark_delay="10 seconds")


def minutes(orders: Stream) -> Rows:
    total = F.sum("amount").alias("total")
    return orders.window(MINUTE, by="product").agg(total, emit="on_window_update")


def view(rows: JobRows, *key: str) -> dict[Any, dict[str, Any]]:
    """What a view holds: the newest row of each key that is not deleted."""
    held: dict[Any, dict[str, Any]] = {}
    for row in rows:
        place = tuple(row[name] for name in key)
        held.pop(place, None)
        if not row.pop("_deleted", False):
            held[place] = row
    return held


PARTS = [
    {"orders": [order("tea", 5), order("cup", 1)]},
    {"orders": [order("tea", -4), order("cup", 2)]},
    {"orders": [order("tea", 9), order("cup", 1)]},
]


def test_a_result_that_no_longer_passes_a_filter_is_deleted_from_a_keyed_output(app: App) -> None:
    orders = stream(app)

    @app.job(into=app.topic("large", key=KEY))
    def large() -> DataFrame:
        frame = minutes(orders).df.filter("total >= 3").withColumn("double", F.col("total") * 2)
        return frame.select("window_start", "product", "double")

    rows = run(large, PARTS)
    assert [(row["product"], row["double"], row["_deleted"]) for row in rows if row["product"] == "tea"] == [
        ("tea", 10, False),
        ("tea", 10, True),
        ("tea", 20, False),
    ]
    assert {name: row["double"] for (name,), row in view(rows, "product").items()} == {"tea": 20, "cup": 8}


def test_results_that_are_only_given_other_columns_replace_each_other_without_deletes(
    spark: SparkSession,
) -> None:
    shop = App("projections")
    into = shop.topic("totals", key=["minute", "product"])

    def nodes(make: Any) -> list[str]:
        job = shop.job(into=into, name=f"job{len(shop.jobs)}")(lambda: make(minutes(stream(shop)).df))
        return [node.kind for node in job.build(spark, "127.0.0.1:1")[0].nodes]

    renamed = F.col("window_start").alias("minute")
    assert nodes(lambda df: df.select(renamed, "product", "total")) == ["source", "window"]
    truncated = F.date_trunc("hour", "window_start").alias("minute")
    assert nodes(lambda df: df.select(truncated, "product")) == ["source", "window", "upserts"]


def test_the_next_result_passes_when_the_first_one_is_replaced(app: App) -> None:
    """The changes are written with their weights."""
    orders = stream(app)

    @app.job(into=app.topic("changes"))
    def changes() -> Rows:
        return minutes(orders).deduplicate("total", within="1 hour").changelog

    parts = [{"orders": [order("cup", 5), order("tea", 5)]}, {"orders": [order("cup", 1)]}]
    found = [(row["product"], row["total"], row["_weight"]) for row in run(changes, parts)]
    assert found[0] == ("cup", 5, 1)
    assert Counter(found[1:]) == Counter([("cup", 5, -1), ("cup", 6, 1), ("tea", 5, 1)])


def test_a_ranking_follows_results_that_change(app: App) -> None:
    orders = stream(app)

    @app.job(into=app.topic("best", key=["window_start", "rank", "product"]))
    def best() -> Rows:
        return minutes(orders).top(2, order="total desc", ties="rank")

    parts = [
        {"orders": [order("tea", 5), order("cup", 1), order("jar", 4)]},
        {"orders": [order("tea", -4), order("cup", 3), order("mug", 1)]},
    ]
    held = view(run(best, parts), "rank", "product").values()
    assert {(row["rank"], row["product"], row["total"]) for row in held} == {(1, "cup", 4), (1, "jar", 4)}


def test_hours_of_minutes_that_change_equal_hours_of_orders(app: App) -> None:
    orders = stream(app)
    columns = {"total": F.sum, "most": F.max, "all": F.collect_list}
    aggregates = [function("total").alias(name) for name, function in columns.items()]

    @app.job(into=app.topic("hours", key=KEY))
    def hours() -> Rows:
        window = minutes(orders).window(tumbling("1 hour"), by="product")
        return window.agg(*aggregates, emit="on_window_update")

    rows = run(hours, [*PARTS, {"orders": [order("tea", 7, 3599), order("tea", 1, 3700)]}])
    assert [row["total"] for row in rows if (row["product"], row["window_start"]) == ("tea", START)] == [
        5, 1, 10, 17
    ]  # fmt: skip
    (newest,) = (row for row in view(rows, *KEY).values() if row["total"] == 17)
    assert (newest["most"], newest["all"]) == (10, [10, 7])


def test_a_row_without_a_match_comes_and_goes_with_its_matches(app: App) -> None:
    orders, returns = stream(app), stream(app, "returns")

    @app.job(into=app.topic("net", key=KEY))
    def net() -> Rows:
        sold = minutes(orders).transform(lambda frame: frame.filter("total > 3"))
        back = minutes(returns).transform(lambda frame: frame.filter("total > 3"))
        return sold.join(back, on=["window_start", "product"], within="0 seconds", how="left")

    parts = [
        {"orders": [order("tea", 5), order("cup", 4)], "returns": [order("tea", 1)]},
        {"returns": [order("tea", 4)]},
        {"orders": [order("tea", 1), order("cup", -2)], "returns": [order("tea", -3)]},
    ]
    rows = run(net, parts)
    (right,) = (name for name in rows[0] if name.endswith("total") and name != "total")
    found = [(row["total"], row[right], row["_deleted"]) for row in rows if row["product"] == "tea"]
    assert found == [(5, None, False), (5, 5, False), (6, None, False)]
    assert [row["_deleted"] for row in rows if row["product"] == "cup"] == [False, True]


def refusal(spark: SparkSession, rows: Any, into: Any) -> str:
    shop = App("refusals")
    job = shop.job(into=into, name="refused")(lambda: rows(minutes(stream(shop))))
    try:
        plan, made = job.build(spark, "127.0.0.1:1")
        Planner(plan, made.frame, state="/nowhere")
    except Misuse as refused:
        return str(refused)
    return "not refused"


def test_what_cannot_take_back_results_is_refused(app: App, spark: SparkSession) -> None:
    keyed = app.topic("keyed", key=KEY)
    assert "only appends rows" in refusal(spark, lambda rows: rows, app.topic("plain"))
    spark_made = {
        "aggregation of Spark's own": lambda df: df.groupBy("window_start", "product").agg(F.max("total")),
        "a join of Spark's own": lambda df: df.join(df.alias("other"), "product"),
        "not the same each time": lambda df: df.filter(F.rand() > 0.5),
    }
    for message, function in spark_made.items():
        assert message in refusal(spark, lambda rows, made=function: made(rows.df), keyed)
    with LogicalPlan(spark, "127.0.0.1:1").active():
        with pytest.raises(Misuse, match="changelog is for results that change"):
            _ = stream(app).changelog
        with pytest.raises(Misuse, match="ties='all' is not known"):
            minutes(stream(app)).top(1, order="total", ties="all")  # type: ignore[arg-type]
