"""Jobs run by the testing kit: rows in, rows out, in batches, with bad values and with crashes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.errors import Misuse
from headrace.streams.job import Job
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS, _split

Row = dict[str, Any]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def app(spark: SparkSession) -> App:
    return App("shop")


@pytest.fixture
def large(app: App) -> Job:
    orders = app.stream("orders", "product string, amount double", metadata=["key", "offset"])

    @app.job(into=app.topic("large", key="product"))
    def large() -> DataFrame:
        return orders.df.filter("amount > 100").withColumn("_key", F.expr("cast(_key as string)"))

    return large


@pytest.fixture
def per_minute(app: App) -> Job:
    orders = app.stream(
        "orders", "product string, amount double, at timestamp", event_time="at", watermark_delay="10 seconds"
    )

    @app.job(into=app.topic("revenue", key=["start", "product"]))
    def revenue() -> DataFrame:
        sums = orders.df.groupBy(F.window("at", "1 minute"), "product").agg(F.sum("amount").alias("revenue"))
        return sums.select(F.col("window.start").alias("start"), "product", "revenue")

    return revenue


def order(minute: int, amount: float, product: str = "tea") -> Row:
    return {"product": product, "amount": amount, "at": datetime(2026, 1, 1, 0, minute, tzinfo=UTC)}


ORDERS = [
    order(0, 1.0),
    order(0, 2.0),
    b"no JSON",
    order(1, 4.0),
    order(3, 8.0),
    order(0, 16.0),
    order(5, 32.0),
]
PARTS = [{"orders": ORDERS[:5]}, {"orders": ORDERS[5:]}]  # the second begins with one that is late
REVENUE = [(0, 3.0), (1, 4.0), (3, 8.0)]


def expected(revenues: list[tuple[int, float]]) -> list[Row]:
    return [
        {"start": datetime(2026, 1, 1, 0, minute, tzinfo=UTC), "product": "tea", "revenue": revenue}
        for minute, revenue in revenues
    ]


def test_rows_come_out_with_their_types_and_bad_ones_with_the_reason(large: Job) -> None:
    rows = run(large, {"orders": [("k", {"product": "kettle", "amount": 120.0}), b"{", None, {"amount": 5}]})
    assert rows == [{"product": "kettle", "amount": 120.0, "_key": "k", "_offset": 0}]
    (dead,) = rows.dead
    assert (dead["value"], dead["topic"], dead["partition"], dead["offset"]) == (b"{", "orders", 0, 1)
    assert dead["reason"]


def test_a_crash_between_two_batches_changes_nothing(per_minute: Job) -> None:
    rows = run(per_minute, PARTS, crash=("committed", 2))
    assert sorted(rows, key=lambda row: row["start"]) == expected(REVENUE)
    assert [dead["value"] for dead in rows.dead] == [b"no JSON"]


def test_a_crash_in_the_middle_of_a_transaction_changes_nothing(large: Job) -> None:
    inputs = {"orders": [{"product": "kettle", "amount": 101.0}, b"{"]}
    rows = run(large, inputs, crash=("marked", 0))
    assert [row["amount"] for row in rows] == [101.0]
    assert len(rows.dead) == 1


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("step", TOPIC_STEPS)
def test_no_crash_changes_anything(per_minute: Job, step: str, batch: int) -> None:
    rows = run(per_minute, PARTS, crash=(step, batch))
    assert sorted(rows, key=lambda row: row["start"]) == expected(REVENUE)
    assert [dead["value"] for dead in rows.dead] == [b"no JSON"]


def test_an_error_of_the_job_is_raised(app: App) -> None:
    orders = app.stream("orders", "amount int")

    @app.job(into=app.topic("out"))
    def failing() -> DataFrame:
        return orders.df.select(F.expr("raise_error('too bad')").alias("x"))

    with pytest.raises(Exception, match="too bad"):
        run(failing, {"orders": [{"amount": 1}]})


def test_a_crash_that_is_no_step_is_refused(large: Job) -> None:
    with pytest.raises(Misuse, match="begun, staged, delivered, computed, written, marked, committed"):
        run(large, {}, crash=("slept", 0))


def test_rows_are_split_in_order() -> None:
    assert _split({"t": [1, 2, 3, 4, 5], "u": [1]}, 2) == [{"t": [1, 2], "u": []}, {"t": [3, 4, 5], "u": [1]}]
    with pytest.raises(Misuse):
        _split({}, 0)


def test_sql_under_test_prints_nothing_of_spark(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    app.stream("orders", "product string, amount double")
    job = app.job(into=app.topic("large"), name="large")(
        lambda: app.sql("SELECT product FROM orders WHERE amount > 100")
    )
    assert run(job, {"orders": [{"product": "kettle", "amount": 120.0}]}) == [{"product": "kettle"}]
    assert "SQLQueryContextLogger" not in capsys.readouterr().err
