"""Views: jobs whose rows replace one another, what is remembered of them, and feeds of what they write."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.feeds.catalog import read_views
from headrace.streams.job import Job
from headrace.streams.runner import Runner, RunOptions
from headrace.testing import EmbeddedBroker, run

pytestmark = pytest.mark.timeout(240)


class Quiet:
    """A display that shows nothing."""

    def say(self, *_: object) -> None: ...
    def tell(self, *_: object) -> None: ...
    def show(self, *_: object) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Shop:
    """An application with a view of what each product has earned; and a broker to run it on."""

    def __init__(self, bootstrap: str, state: Path) -> None:
        self.bootstrap = bootstrap
        self._state = state
        self.app = App("shop")
        orders = self.app.stream("orders", "product string, amount double")

        @self.app.job(into=self.app.view("revenue", key="product", partitions=2))
        def revenue() -> DataFrame:
            sums = orders.df.groupBy("product").agg(F.sum("amount").alias("revenue"))
            return sums.withColumn("_deleted", F.expr("revenue <= 0"))

    def sell(self, *orders: tuple[str | None, float]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for product, amount in orders:
            producer.produce(
                "orders", json.dumps({"product": product, "amount": amount}).encode(), partition=0
            )
        assert producer.flush(100) == 0
        assert Runner(self.order(), Quiet()).run() == 0

    def order(self) -> RunOptions:
        return RunOptions(app=self.app, once=True, broker=self.bootstrap, state=self._state)

    def changes(self, since: str | None = None) -> list[Any]:
        return list(self.app.changes("revenue", since=since, follow=False, broker=self.bootstrap))


@pytest.fixture
def shop(spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path) -> Shop:
    AdminClient({"bootstrap.servers": headrace_broker.bootstrap}).list_topics(timeout=100)
    return Shop(headrace_broker.bootstrap, tmp_path)


def test_a_view_holds_the_newest_row_of_each_key_and_its_feed_carries_each_step(shop: Shop) -> None:
    shop.sell(("tea", 3.0), ("cup", 5.0), ("tea", 1.0), (None, 2.0))
    rows = shop.changes()
    assert {(change.kind, change.key["product"], change.row["revenue"]) for change in rows} == {
        ("row", "tea", 4.0),
        ("row", "cup", 5.0),
        ("row", None, 2.0),
    }
    shop.sell(("tea", 2.0), ("cup", -5.0), (None, -2.0))
    later = shop.changes(since=rows[-1].token)
    assert {(change.kind, change.key["product"]) for change in later} == {
        ("upsert", "tea"),
        ("delete", "cup"),
        ("delete", None),
    }
    assert [change.row for change in shop.changes()] == [{"product": "tea", "revenue": 6.0}]
    check_what_is_remembered(shop)


def check_what_is_remembered(shop: Shop) -> None:
    with Cluster.of(shop.bootstrap) as cluster:
        (view,) = read_views(cluster).values()
    assert (view.name, view.topic, view.key, view.job) == ("revenue", "revenue", ("product",), "shop.revenue")
    assert view.columns == ("product", "revenue")
    admin = AdminClient({"bootstrap.servers": shop.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "revenue")]).values()
    settings = future.result(100)
    assert settings["cleanup.policy"].value == "compact"
    assert settings["min.compaction.lag.ms"].value == "86400000"


def per_minute(app: App, **of_stream: str) -> Job:
    """A job that counts by minute, into a view."""
    orders = app.stream("orders", "product string, amount double, at timestamp", **of_stream)

    @app.job(into=app.view("per_minute", key=["window_start", "product"]))
    def per_minute() -> DataFrame:
        sums = orders.df.groupBy(F.window("at", "1 minute"), "product").agg(F.sum("amount").alias("revenue"))
        return sums.select(F.col("window.start").alias("window_start"), "product", "revenue")

    return per_minute


def test_a_view_by_window_is_keyed_by_its_start_whatever_crashes(app: App) -> None:
    at = datetime(2026, 1, 1, 10, tzinfo=UTC)
    order = {"product": "tea", "amount": 1.0, "at": at}
    rows = run(per_minute(app), [{"orders": [order]}, {"orders": [order, order]}], crash=("written", 1))
    assert [(row["window_start"], row["revenue"]) for row in rows] == [(at, 1.0), (at, 3.0)]


def test_a_window_that_is_closed_by_a_watermark_comes_into_a_view_once(app: App) -> None:
    at = datetime(2026, 1, 1, 10, tzinfo=UTC)
    orders = [{"product": "tea", "amount": 1.0, "at": at + timedelta(minutes=minute)} for minute in (0, 0, 5)]
    rows = run(per_minute(app, event_time="at", watermark_delay="1 minute"), {"orders": orders}, batches=3)
    assert [(row["window_start"], row["revenue"]) for row in rows] == [(at, 2.0)]


def test_rows_that_are_only_passed_on_are_appended_and_the_user_has_the_last_word(app: App) -> None:
    orders = app.stream("orders", "product string, amount double")

    @app.job(into=app.view("prices", key="product"))
    def prices() -> DataFrame:
        return orders.df

    @app.job(into=app.view("all_prices", key="product"), output_mode="complete")
    def all_prices() -> DataFrame:
        return orders.df.groupBy("product").agg(F.max("amount").alias("amount"))

    parts = [{"orders": [{"product": "tea", "amount": 1.0}]}, {"orders": [{"product": "cup", "amount": 2.0}]}]
    assert [row["product"] for row in run(prices, parts)] == ["tea", "cup"]
    assert sorted(row["product"] for row in run(all_prices, parts)) == ["cup", "tea", "tea"]


MISTAKES: dict[str, Callable[[App], object]] = {
    "needs a key": lambda app: app.view("v", key=()),
    "change_retention of the view 'v'": lambda app: app.view("v", key="a", change_retention="a while"),
    "cannot be the topic's name": lambda app: app.view("a b", key="a"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_in_a_view_is_explained(message: str) -> None:
    with pytest.raises(Misuse, match=message):
        MISTAKES[message](App("shop"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [("product", "keyed by 'id'"), ("product as id, 'x' as _deleted", "of type boolean, not string")],
)
def test_rows_that_do_not_fit_a_view_are_explained(app: App, columns: str, message: str) -> None:
    orders = app.stream("orders", "product string")

    @app.job(into=app.view("v", key="id"))
    def job() -> DataFrame:
        return orders.df.selectExpr(*columns.split(", "))

    with pytest.raises(Misuse, match=message):
        run(job, {"orders": [{"product": "tea"}]})
