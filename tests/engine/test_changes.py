"""What may change in a job without a reset, and what may not, for every operator: see docs/jobs.md."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, session, sliding, tumbling
from headrace.engine.description import Description, incompatibilities
from headrace.engine.planner import Planner
from headrace.spark.internals import input_topics, stateful_operators

MINUTE = tumbling("1 minute")


@dataclass
class Shop:
    """What a version of the job is made of."""

    app: App
    clicks: Any
    orders: Any
    users: Any


Work = Callable[[Shop], Any]


def described(spark: SparkSession, folder: Path, work: Work, **stream: Any) -> Description:
    app = App("shop")
    times: Any = {"event_time": "at", "watermark_delay": "1 minute"}
    shop = Shop(
        app,
        app.stream("clicks", "k long, d double, at timestamp", **(times | stream)),
        app.stream("orders", "k long, d double, at timestamp", **times),
        app.table("users", "k long, name string", key="k"),
    )
    job = app.job(into=app.topic("out", key="k"), name="work")(lambda: work(shop))
    plan, rows = job.build(spark, "127.0.0.1:1")
    planner = Planner(plan, rows.frame, state=str(folder))
    planned = planner.planned_rows().frame
    return Description(
        generation=1,
        inputs=input_topics(planned),
        output="out",
        mode=rows.mode or "append",
        operators=stateful_operators(planned),
        state=planner.hooks.state,
    )


def events() -> Column:
    return F.count("*").alias("events")


def windows(shop: Shop, *more: Column, window: Any = MINUTE, by: str = "k", **options: Any) -> Any:
    return shop.clicks.window(window, by=by).agg(events(), *more, **options)


def joined(shop: Shop, within: Any = "1 minute", **options: Any) -> Any:
    return shop.clicks.join(shop.orders, on=options.pop("on", "k"), within=within, **options)


def delayed(shop: Shop, delay: str = "1 minute") -> Any:
    return shop.clicks.join(shop.users, on="k", delay=delay)


def changing(shop: Shop, least: int = 1, **options: Any) -> Any:
    rows = windows(shop, F.sum("d").alias("sum"), emit="on_window_update", **options)
    return rows.transform(lambda df: df.filter(f"events >= {least}"))


MAY_CHANGE: dict[str, tuple[Work, Work, dict[str, Any]]] = {
    "a filter behind": (windows, lambda shop: windows(shop).df.filter("events > 1"), {}),
    "a column behind": (windows, lambda shop: windows(shop).df.withColumn("x", F.lit(1)), {}),
    "a function behind": (
        windows,
        lambda shop: windows(shop).map_arrow(lambda batch: batch.select(["k"]), "k long"),
        {},
    ),
    "a table joined behind": (windows, lambda shop: windows(shop).join(shop.users, on="k"), {}),
    "a filter in front": (
        windows,
        lambda shop: (
            shop.clicks.transform(lambda df: df.filter("d > 1")).window(MINUTE, by="k").agg(events())
        ),
        {},
    ),
    "another aggregate": (windows, lambda shop: windows(shop, F.sum("d").alias("sum")), {}),
    "an aggregate that only rows have": (windows, lambda shop: windows(shop, F.stddev("d").alias("s")), {}),
    "when results are given": (windows, lambda shop: windows(shop, emit="on_window_update"), {}),
    "the watermark delay": (windows, windows, {"watermark_delay": "2 minutes"}),
    "the idle timeout": (windows, windows, {"idle_timeout": "1 hour"}),
    "metadata": (windows, windows, {"metadata": ["partition"]}),
    "the size of batches": (windows, windows, {"max_records": 10}),
    "how long duplicates are left out": (
        lambda shop: shop.clicks.deduplicate("k", within="1 hour"),
        lambda shop: shop.clicks.deduplicate("k", within="2 hours"),
        {},
    ),
    "how long rows wait for a table": (delayed, lambda shop: delayed(shop, "5 minutes"), {}),
    "a filter of results that change, in front of an output": (
        changing,
        lambda shop: changing(shop, least=5),
        {},
    ),
    "how many rows are ranked": (
        lambda shop: windows(shop).top(3, order="events desc"),
        lambda shop: windows(shop).top(5, order="events", by="k"),
        {},
    ),
}


@pytest.mark.parametrize("change", MAY_CHANGE)
def test_this_may_change_without_a_reset(spark: SparkSession, tmp_path: Path, change: str) -> None:
    before, after, stream = MAY_CHANGE[change]
    old, new = described(spark, tmp_path, before), described(spark, tmp_path, after, **stream)
    assert incompatibilities(old, new) == []


MAY_NOT_CHANGE: dict[str, tuple[Work, Work, str]] = {
    "the size of windows": (
        windows,
        lambda shop: windows(shop, window=tumbling("2 minutes")),
        "window-1 kept state for windows of 60 s every 60 s by .*k.*, and now .* windows of 120 s",
    ),
    "the keys of windows": (windows, lambda shop: windows(shop, by="d"), "window-1 kept state"),
    "the kind of windows": (
        windows,
        lambda shop: windows(shop, window=session("1 minute")),
        "now it would be for sessions",
    ),
    "the size of sliding windows": (
        lambda shop: windows(shop, window=sliding("1 minute")),
        lambda shop: windows(shop, window=sliding("2 minutes")),
        "sliding-1 kept state for events of the last 1 minute",
    ),
    "the keys of a join": (
        joined,
        lambda shop: joined(shop, on="at"),
        "join-1 kept state for the inner join",
    ),
    "the interval of a join": (joined, lambda shop: joined(shop, within="2 minutes"), "from 60000 ms before"),
    "the type of a join": (joined, lambda shop: joined(shop, how="left"), "the left join"),
    "the columns of a join": (
        joined,
        lambda shop: shop.clicks.transform(lambda df: df.drop("d")).join(
            shop.orders, on="k", within="1 minute"
        ),
        "join-1 kept state",
    ),
    "the keys of deduplicate": (
        lambda shop: shop.clicks.deduplicate("k", within="1 hour"),
        lambda shop: shop.clicks.deduplicate("k", "d", within="1 hour"),
        "deduplicate-1 kept state for rows that passed, by struct<k:bigint>, and now .*k:bigint,d:double",
    ),
    "the columns of rows that wait": (
        delayed,
        lambda shop: shop.clicks.transform(lambda df: df.drop("d")).join(
            shop.users, on="k", delay="1 minute"
        ),
        "delay-1 kept state",
    ),
    "a filter in front of results that are kept, because they can be retracted": (
        lambda shop: changing(shop).top(3, order="events desc"),
        lambda shop: changing(shop, least=2).top(3, order="events desc"),
        "top-1 kept state for the first 3 rows",
    ),
    "the ranking of results that change": (
        lambda shop: changing(shop).top(3, order="events desc"),
        lambda shop: changing(shop).top(3, order="events desc", ties="rank"),
        r"first 3 rows \(row_number\) by events descending.*, and now .*first 3 rows \(rank\)",
    ),
    "whether the rows of a window change": (
        lambda shop: windows(shop).window(tumbling("1 hour")).agg(F.sum("events").alias("n")),
        lambda shop: changing(shop).window(tumbling("1 hour")).agg(F.sum("events").alias("n")),
        "window-2 kept state for windows of 3600 s .*, and now it would be for .* with the changing rows",
    ),
    "the type of a join of results that change": (
        lambda shop: changing(shop).join(shop.orders, on="k", within="1 hour"),
        lambda shop: changing(shop).join(shop.orders, on="k", within="1 hour", how="left"),
        "join-1 kept state for the inner join by k",
    ),
    "how long duplicates of results that change are left out": (
        lambda shop: changing(shop).deduplicate("k", within="1 hour"),
        lambda shop: changing(shop).deduplicate("k", within="2 hours"),
        "deduplicate-1 kept state for the changing rows .* by k, 3600000 ms apart",
    ),
    "an operator that is added": (
        windows,
        lambda shop: windows(shop).deduplicate("k", within="1 hour"),
        r"deduplicate-1 \(rows that passed, by struct<k:bigint>\) is new",
    ),
    "an operator that is removed": (windows, lambda shop: shop.clicks.df, "has no such operator any more"),
    "the topics": (joined, lambda shop: shop.clicks.df, "it read clicks, orders, and now it reads clicks"),
    "the keys of an aggregation of Spark's": (
        lambda shop: shop.clicks.df.groupBy(F.window("at", "1 minute"), "k").count(),
        lambda shop: shop.clicks.df.groupBy(F.window("at", "1 minute"), "d").count(),
        "the keys of its aggregation were",
    ),
}


@pytest.mark.parametrize("change", MAY_NOT_CHANGE)
def test_this_is_refused_in_terms_of_the_operator(spark: SparkSession, tmp_path: Path, change: str) -> None:
    before, after, reason = MAY_NOT_CHANGE[change]
    reasons = incompatibilities(described(spark, tmp_path, before), described(spark, tmp_path, after))
    assert re.search(reason, " ".join(reasons)), reasons


def test_an_operator_of_another_kind_in_front_does_not_rename_the_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    old = described(spark, tmp_path, windows)
    new = described(
        spark,
        tmp_path,
        lambda shop: shop.clicks.deduplicate("k", within="1 hour").window(MINUTE, by="k").agg(events()),
    )
    assert new.state["window-1"] == old.state["window-1"]
