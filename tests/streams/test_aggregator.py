"""Aggregates of a user's own class in jobs: in every window, beside Spark's, through restarts and changes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import Aggregator, App, Groups, Misuse, hopping, read_state, session, sliding, tumbling
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.streams.windows import Window
from headrace.testing import run
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)

SCHEMA = "shop string, amount double, weight double, at timestamp"


class WeightedMean(Aggregator):
    state = "total double, weight double"
    result = "double"

    def accumulate(self, groups: Groups, amount: pa.Array, weight: pa.Array) -> Mapping[str, Any]:
        return {
            "total": groups.aggregate(pc.multiply(amount, weight), "sum"),
            "weight": groups.aggregate(weight, "sum"),
        }

    def merge(self, groups: Groups, states: pa.RecordBatch) -> Mapping[str, Any]:
        return {name: groups.aggregate(states[name], "sum") for name in ("total", "weight")}

    def finish(self, states: pa.RecordBatch) -> Any:
        return pc.divide(states["total"], states["weight"])


@dataclass(frozen=True)
class Largest(Aggregator):
    """The largest values, in order."""

    count: int
    state = "values array<double>"
    result = "array<double>"

    def accumulate(self, groups: Groups, amount: pa.Array) -> Mapping[str, Any]:
        return {"values": self._kept(groups.aggregate(amount, "list"))}

    def merge(self, groups: Groups, states: pa.RecordBatch) -> Mapping[str, Any]:
        return {"values": self._kept(groups.concat(states["values"]))}

    def finish(self, states: pa.RecordBatch) -> Any:
        return states["values"]

    def _kept(self, lists: pa.ListArray) -> pa.Array:
        return pa.array([sorted(values, reverse=True)[: self.count] for values in lists.to_pylist()])


def mean_of(values: pd.Series) -> float:
    return float(values.mean())


ORDERS = [("x", 3.0, 1.0, 1), ("x", 1.0, 3.0, 2), ("y", 4.0, 1.0, 2), ("x", 9.0, 2.0, 3), ("x", 5.0, 2.0, 8)]
END = {"shop": "end", "amount": 0.0, "weight": 1.0, "at": datetime(2026, 1, 2, tzinfo=UTC)}


def order(shop: str, amount: float, weight: float, minute: int) -> dict[str, Any]:
    at = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
    return {"shop": shop, "amount": amount, "weight": weight, "at": at}


def columns() -> tuple[Column, ...]:
    return (
        F.count("*").alias("orders"),
        WeightedMean()("amount", "weight").alias("mean"),
        Largest(2)(F.col("amount") + 1).alias("largest"),
        (WeightedMean()("amount", "weight") * F.sum("weight")).alias("total"),
    )


def job_of(window: Window, **stream: Any) -> Job:
    app = App("shop")
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="9 minutes", **stream)

    @app.job(into=app.topic("results"))
    def results() -> Rows:
        return orders.window(window, by="shop").agg(*columns())

    return results


def expected(orders: list[tuple[str, float, float, int]]) -> dict[str, Any]:
    total, weight = sum(a * w for _, a, w, _ in orders), sum(w for _, _, w, _ in orders)
    largest = sorted((a + 1 for _, a, _, _ in orders), reverse=True)[:2]
    return {"orders": len(orders), "mean": total / weight, "largest": largest, "total": total}


def span(window: str, row: dict[str, Any]) -> tuple[float, float]:
    """The minutes that a result is of, from the first to before the second."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    if window == "sliding":
        at = (row["at"] - noon).total_seconds() / 60
        return at - 2.5, at + 0.5
    start, end = ((row[name] - noon).total_seconds() / 60 for name in ("window_start", "window_end"))
    return start, end


@pytest.mark.parametrize(
    ("kind", "window", "stream"),
    [
        ("tumbling", tumbling("5 minutes"), {}),
        ("hopping", hopping("4 minutes", every="2 minutes"), {"metadata": ["partition"]}),
        ("session", session("2 minutes"), {}),
        ("sliding", sliding("3 minutes"), {}),
    ],
)
def test_a_users_aggregate_is_computed_in_every_window(
    kind: str, window: Window, stream: dict[str, Any], spark: SparkSession
) -> None:
    rows = [order(*each) for each in ORDERS]
    parts = [{"orders": rows[:2]}, {"orders": rows[2:]}, {"orders": [END]}]
    found = [
        row for row in run(job_of(window, **stream), parts, crash=("written", 1)) if row["shop"] != "end"
    ]
    assert len(found) >= 3
    for row in found:
        first, end = span(kind, row)
        seen = [each for each in ORDERS if each[0] == row["shop"] and first <= each[3] < end]
        wanted = expected(seen)
        assert row["largest"] == wanted.pop("largest")
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)


def test_spark_computes_it_too_outside_of_windows(spark: SparkSession) -> None:
    frame = spark.createDataFrame([each[:3] for each in ORDERS], "shop string, amount double, weight double")
    found = frame.groupBy("shop").agg(WeightedMean()("amount", "weight").alias("mean")).collect()
    assert {row["shop"]: row["mean"] for row in found} == {"x": pytest.approx(4.25), "y": 4.0}


def averaging(aggregator: Aggregator, *more: Column) -> App:
    app = App("shop")
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("means"), name="means")
    def means() -> Rows:
        mean = aggregator("amount", "weight").alias("mean")
        return orders.window(tumbling("5 minutes"), by="shop").agg(mean, *more)

    return app


def test_its_state_goes_through_restarts_and_is_shown(workshop: Workshop, spark: SparkSession) -> None:
    workshop.write("orders", *(as_json(order(*each)) for each in ORDERS[:2]))
    assert workshop.run_once(averaging(WeightedMean())) == 0
    (kept,) = read_state(spark, "means", state=workshop.state).collect()
    (state,) = (value for name, value in kept.asDict().items() if name.endswith("WeightedMean"))
    assert (state["total"], state["weight"]) == (6.0, 4.0)
    workshop.write("orders", as_json(order(*ORDERS[3])), as_json(order("x", 1.0, 1.0, 9)))
    added = Largest(1)("amount").alias("largest")
    assert workshop.run_once(averaging(WeightedMean(), added)) == 0, workshop.recorder.news
    (found,) = (json.loads(row) for row in workshop.read("means"))
    assert (found["mean"], found["largest"]) == (4.0, [9.0])


def test_its_state_may_not_change_its_type(workshop: Workshop) -> None:
    workshop.write("orders", as_json(order(*ORDERS[0])))
    assert workshop.run_once(averaging(WeightedMean())) == 0
    changed = type("WeightedMean", (WeightedMean,), {"state": "total double, weight bigint"})
    assert workshop.run_once(averaging(changed())) != 0
    said = workshop.recorder.news[-1].text
    assert "window-1 kept amount, weight.WeightedMean as struct<total:double,weight:double>" in said
    assert "and now it is struct<total:double,weight:bigint>" in said


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: WeightedMean()(), "WeightedMean needs the columns that it aggregates"),
        (lambda: F.pandas_udf(mean_of, "double")("amount"), "no headrace.Aggregator"),  # type: ignore[call-overload]  # PySpark's stubs
        (
            lambda: type("Odd", (WeightedMean,), {"state": "total numbr"})()("amount", "weight"),
            "the state of Odd: 'total numbr' is not a schema",
        ),
    ],
)
def test_what_cannot_be_an_aggregate_is_refused(
    make: Callable[[], Column], says: str, spark: SparkSession
) -> None:
    app = App("shop")
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="9 minutes")

    @app.job(into=app.topic("results"))
    def results() -> Rows:
        return orders.window(tumbling("5 minutes")).agg(make().alias("x"))

    with pytest.raises(Misuse) as caught:
        run(results, {"orders": []})
    assert says in str(caught.value)


def test_a_record_that_it_fails_on_becomes_a_dead_letter(spark: SparkSession) -> None:
    class Inverse(WeightedMean):
        def accumulate(self, groups: Groups, amount: pa.Array, weight: pa.Array) -> Mapping[str, Any]:
            if pc.any(pc.equal(weight, 0.0)).as_py():
                raise ZeroDivisionError("no weight")
            return super().accumulate(groups, amount, weight)

    app = App("shop")
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("results"), on_error="dead_letter")
    def results() -> Rows:
        mean = Inverse()("amount", "weight").alias("mean")
        return orders.window(tumbling("5 minutes"), by="shop").agg(mean, F.count("*").alias("orders"))

    rows = run(results, {"orders": [order(*ORDERS[0]), order("x", 1.0, 0.0, 1), END]})
    assert [(row["mean"], row["orders"]) for row in rows if row["shop"] == "x"] == [(3.0, 1)]
    assert [(letter["offset"], "no weight" in letter["reason"]) for letter in rows.dead] == [(1, True)]


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": row["at"].isoformat()}
