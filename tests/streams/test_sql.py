"""Streams in SQL, by the names of their topics."""

import doctest
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace import App
from headrace.engine.logical import LogicalPlan
from headrace.errors import Misuse
from headrace.streams import sql
from headrace.streams.rows import Rows
from headrace.testing import run

pytestmark = pytest.mark.timeout(240)

START = datetime(2026, 1, 1, tzinfo=UTC)
TIMES: dict[str, Any] = {"event_time": "at", "watermark_delay": "10 seconds"}


def order(product: str, amount: float, second: int) -> dict[str, Any]:
    return {"product": product, "amount": amount, "at": START + timedelta(seconds=second)}


@pytest.fixture
def shop(app: App) -> App:
    app.stream("shop.orders", "product string, amount double, at timestamp", **TIMES)
    app.stream(
        "prices", "product string, price double, since timestamp", event_time="since", watermark_delay="1 s"
    )
    app.table("users", "id long, name string", key="id")
    return app


def test_windows_in_sql_close_as_others_do_and_the_streams_name_is_its_topic(shop: App) -> None:
    @shop.job(into=shop.topic("revenue"))
    def revenue() -> Rows:
        return shop.sql("""
            WITH large AS (SELECT * FROM `shop.orders` WHERE amount > 1)
            SELECT window.start AS minute, product, sum(amount) AS revenue
            FROM large GROUP BY window(at, '1 minute'), product
        """)

    inputs = {
        "shop.orders": [order("tea", 2, 0), order("tea", 3, 59), order("tea", 1, 30), order("cup", 5, 90)]
    }
    assert run(revenue, inputs) == [{"minute": START, "product": "tea", "revenue": 5.0}]


def test_rows_of_sql_keep_their_time_and_rows_can_be_given_names(shop: App) -> None:
    @shop.job(into=shop.topic("out"))
    def out() -> Rows:
        large = shop.sql("SELECT product AS name, amount, at FROM `shop.orders` WHERE amount > 1")
        assert (large.event_time, large.watermark_delay) == ("at", "10000 ms")
        first = large.deduplicate("name", within="1 hour")
        return shop.sql("SELECT upper(name) AS name, amount FROM firsts", firsts=first)

    inputs = {"shop.orders": [order("tea", 2, 0), order("tea", 3, 9), order("cup", 1, 30)]}
    assert run(out, inputs) == [{"name": "TEA", "amount": 2.0}]


MISTAKES = {
    "SELEC 1": "the SQL cannot be read: Syntax error at or near 'SELEC'",
    "SELECT colour FROM `shop.orders`": "cannot be run: A column.* with name `colour` cannot be resolved",
    "SELECT * FROM shop.orders": "written in backticks, `shop.orders`",
    "SELECT * FROM users": "'users', which is a table: join it first",
    "SELECT * FROM payments": "'payments', which is no stream .*: its streams are 'prices', 'shop.orders'",
    "SELECT * FROM twice": "two streams of this application read the topic 'twice'",
}


def test_mistakes_are_explained_in_one_line_and_no_view_stays(shop: App, spark: SparkSession) -> None:
    shop.stream("twice", "a int")
    shop.stream("twice", "b int")
    plan = LogicalPlan(spark, "127.0.0.1:1")
    tables = spark.catalog.listTables()
    with plan.active():
        for query, message in MISTAKES.items():
            with pytest.raises(Misuse, match=message) as caught:
                shop.sql(query)
            assert "\n" not in str(caught.value)
        rows = shop.sql("SELECT * FROM `shop.orders` o WHERE product IN ('tea')", output_mode="update")
    assert (rows.mode, rows.event_time) == ("update", "at")
    assert [topic for node in plan.nodes for topic in node.topics] == ["shop.orders"]
    assert spark.catalog.listTables() == tables


def test_sql_belongs_into_a_job(shop: App) -> None:
    with pytest.raises(Misuse, match="only inside a job"):
        shop.sql("SELECT 1")


def test_the_examples_of_sql_hold() -> None:
    result = doctest.testmod(sql)
    assert (result.attempted > 0, result.failed) == (True, 0)
