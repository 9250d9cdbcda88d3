"""A view is read back by its own schema, as a table or as a stream."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, View, tumbling
from headrace.errors import Misuse
from headrace.streams.runner import RunOptions
from headrace.testing import run
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def shop() -> tuple[App, View]:
    """An application that keeps the newest price of each product."""
    app = App("shop")
    prices = app.stream("prices", "product string, price double", partitions=1)
    newest = app.view("newest", key="product", partitions=1)

    @app.job(into=newest)
    def newest_prices() -> Any:
        return prices.df.selectExpr("product", "price", "price * 1.19 AS gross")

    return app, newest


def test_a_view_is_a_table_without_a_repeated_schema() -> None:
    app, newest = shop()
    orders = app.stream("orders", "product string, amount long")
    table = app.table(newest)

    @app.job(into=app.topic("priced", partitions=1))
    def priced() -> Rows:
        return orders.join(table, on="product", as_of="latest")

    given = {"newest": [("tea", {"product": "tea", "price": 2.0, "gross": 2.38})]}
    rows = run(priced, [given, {"orders": [{"product": "tea", "amount": 3}]}])
    assert rows == [{"product": "tea", "amount": 3, "price": 2.0, "gross": 2.38}]


def test_a_view_is_a_stream_of_its_changes_without_a_repeated_schema() -> None:
    app = App("shop")
    orders = app.stream("orders", "product string, at timestamp", event_time="at", watermark_delay="0s")
    counts = app.view("counts", key=["window_start", "product"], partitions=1)

    @app.job(into=counts)
    def counting() -> Rows:
        return orders.window(tumbling("1 minute"), by="product").agg(F.count("*").alias("n"))

    changes = app.stream(counts, event_time="window_end", watermark_delay="1 minute")

    @app.job(into=app.topic("copies", partitions=1))
    def copies() -> Any:
        return changes.df.select("product", "n", "window_end")

    row = {"window_start": NOON, "window_end": NOON, "product": "tea", "n": 2}
    assert run(copies, {"counts": [row]}) == [{"product": "tea", "n": 2, "window_end": NOON}]


def test_a_view_of_another_application_is_read_by_what_it_wrote_down(workshop: Workshop) -> None:
    app, _ = shop()
    workshop.write("prices", {"product": "tea", "price": 2.0})
    assert workshop.run_once(app) == 0
    other = App("other")
    newest = other.stream(other.view("newest", key="product"))

    @other.job(into=other.topic("copies", partitions=1))
    def copies() -> Any:
        return newest.df

    assert RunOptions(app=other).chosen()
    assert workshop.run_once(other) == 0
    (row,) = workshop.read("copies")
    assert b'"gross":2.38' in row


MISTAKES: dict[str, Callable[[App], object]] = {
    "needs a schema": lambda app: app.table("newest"),  # type: ignore[call-overload]
    "has its own schema": lambda app: app.stream(app.view("newest", key="id"), "id string"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_schema_is_given_once(message: str) -> None:
    with pytest.raises(Misuse, match=message):
        MISTAKES[message](App("shop"))
