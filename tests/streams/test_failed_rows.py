"""A row that a job's own code fails on is a dead letter, in front of stateful operators and behind them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, session, sliding, tumbling
from headrace.streams.explanation import explain
from headrace.streams.job import Job
from headrace.streams.report import JobMetrics
from headrace.streams.rows import Rows
from headrace.streams.stream import Stream
from headrace.testing import run

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = "id string, shop string, url string, at timestamp"


def order(number: int, **more: Any) -> dict[str, Any]:
    """Order by order: one each second."""
    url = f"a/b/{number}"
    return {"id": str(number), "shop": "A", "url": url, "at": NOON + timedelta(seconds=number)} | more


END = order(3600)
"""Closes all windows of the orders before it."""


def orders_of(app: App) -> Stream:
    return app.stream("orders", SCHEMA, event_time="at", watermark_delay="1 second")


def third_part(rows: Any) -> Rows:
    """The third part of the address, which not every one has."""
    part: Rows = rows.transform(lambda df: df.withColumn("part", F.expr("split(url, '/')[2]")))
    return part


def refuse_odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    for count in batch["n"].to_pylist():
        if count % 2:
            raise ValueError(f"{count} is odd")
    return batch


def offsets(rows: Any) -> list[int]:
    return [letter["offset"] for letter in rows.dead]


WINDOWS = {
    "tumbling": tumbling("1 minute"),
    "hopping": hopping("2 minutes", every="1 minute"),
    "session": session("5 minutes"),
    "sliding": sliding("5 minutes"),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_record_that_fails_in_front_of_a_window_is_a_dead_letter(app: App, kind: str) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts", partitions=1), on_error="dead_letter")
    def counts() -> Rows:
        return third_part(orders).window(WINDOWS[kind], by="shop").agg(F.count("part").alias("n"))

    given = [order(0), order(1), order(2, url="a"), order(3)]
    rows = run(counts, [{"orders": given}, {"orders": [order(4), order(5, url="a"), END]}])
    assert max(row["n"] for row in rows) == 4
    assert offsets(rows) == [2, 5]
    assert "index 2 is out of bounds" in rows.dead[0]["reason"]


def test_a_record_that_fails_in_an_aggregate_is_a_dead_letter(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts", partitions=1), on_error="dead_letter")
    def counts() -> Rows:
        return orders.window(tumbling("1 minute")).agg(F.max(F.expr("split(url, '/')[2]")).alias("last"))

    rows = run(counts, {"orders": [order(0), order(1), order(2, url="a"), END]})
    assert [row["last"] for row in rows] == ["1"]
    assert offsets(rows) == [2]


def joined(app: App) -> Job:
    orders = orders_of(app)
    payments = app.stream("payments", SCHEMA, event_time="at", watermark_delay="1 second")

    @app.job(into=app.topic("paid", partitions=1), on_error="dead_letter")
    def paid() -> Rows:
        return third_part(orders).join(third_part(payments), on="id", within="1 minute")

    return paid


@pytest.mark.parametrize("step", ["computed", "written", "committed"])
def test_a_crash_doubles_neither_rows_nor_dead_letters_of_a_join(app: App, step: str) -> None:
    first = {"orders": [order(0), order(1, url="a"), order(2)], "payments": [order(0), order(2, url="b")]}
    second = {"orders": [order(3)], "payments": [order(1), order(2), order(3)]}
    rows = run(joined(app), [first, second], crash=(step, 0))
    assert sorted(row["id"] for row in rows) == ["0", "2", "3"]
    assert sorted((letter["topic"], letter["offset"]) for letter in rows.dead) == [
        ("orders", 1),
        ("payments", 1),
    ]


def test_rows_of_tasks_that_are_run_again_are_counted_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = orders_of(app)
    returns = app.stream("returns", SCHEMA, event_time="at", watermark_delay="1 second")

    @app.job(into=app.topic("both", partitions=1), on_error="dead_letter", max_dead_letters=2)
    def both() -> Any:
        return third_part(orders).df.unionByName(third_part(returns).df)

    all_metrics: list[JobMetrics] = []
    add = JobMetrics.add

    def noted(metrics: JobMetrics, *args: Any, **more: Any) -> None:
        all_metrics.append(metrics)
        add(metrics, *args, **more)

    monkeypatch.setattr(JobMetrics, "add", noted)
    # The task with the record that does not parse has ended when the other one fails.
    more = [order(number) for number in range(60)]
    rows = run(both, {"orders": ["no order"], "returns": [*more, order(60, url="a")]})
    places = [(letter["topic"], letter["offset"]) for letter in rows.dead]
    assert sorted(places) == [("orders", 0), ("returns", 60)]
    assert (all_metrics[-1].rows, all_metrics[-1].dead) == (62, 2)


def test_a_record_that_fails_in_front_of_deduplication_is_a_dead_letter(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("first", partitions=1), on_error="dead_letter")
    def first() -> Rows:
        return third_part(orders).deduplicate("id", within="1 hour")

    rows = run(first, [{"orders": [order(0), order(1, url="a")]}, {"orders": [order(0), order(1)]}])
    assert [row["id"] for row in rows] == ["0", "1"]
    assert offsets(rows) == [1]


def test_a_record_that_fails_in_front_of_state_of_sparks_own_is_a_dead_letter(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.view("counts", key="part", partitions=1), on_error="dead_letter")
    def counts() -> Any:
        return third_part(orders).df.groupBy("part").agg(F.count(F.lit(1)).alias("n"))

    rows = run(counts, [{"orders": [order(0), order(1, url="a")]}, {"orders": [order(0)]}])
    assert [(row["part"], row["n"]) for row in rows] == [("0", 1), ("0", 2)]
    assert offsets(rows) == [1]


def test_a_record_that_fails_behind_a_join_with_a_table_is_a_dead_letter(app: App) -> None:
    orders = orders_of(app)
    names = app.table("names", "id string, name string", key="id")

    @app.job(into=app.topic("named", partitions=1), on_error="dead_letter")
    def named() -> Rows:
        return third_part(orders.join(names, on="id", as_of="latest"))

    table = [{"id": "0", "name": "Ada"}, {"id": "2", "name": "Bob"}]
    given = [order(0), order(1, url="a"), order(2)]
    rows = run(named, [{"names": table}, {"orders": given}])
    assert [(row["name"], row["part"]) for row in rows] == [("Ada", "0"), ("Bob", "2")]
    assert offsets(rows) == [1]


def odd_counts(app: App) -> Job:
    orders = orders_of(app)

    @app.job(into=app.topic("counts", partitions=1), on_error="dead_letter")
    def counts() -> Rows:
        made = orders.window(tumbling("10 seconds"), by="id").agg(F.count(F.lit(1)).alias("n"))
        even = made.map_arrow(refuse_odd, "window_start timestamp, window_end timestamp, id string, n long")
        return even.transform(lambda df: df.withColumn("half", F.col("n") / 2))

    return counts


@pytest.mark.parametrize("crash", [None, ("computed", 1), ("written", 1), ("committed", 1)])
def test_a_result_that_fails_behind_a_window_is_a_dead_letter(
    app: App, crash: tuple[str, int] | None
) -> None:
    given = [order(0, id="a"), order(1, id="a"), order(1, id="b"), order(2, id="c"), order(3, id="c")]
    rows = run(odd_counts(app), [{"orders": given}, {"orders": [END]}], crash=crash)
    assert sorted((row["id"], row["half"]) for row in rows) == [("a", 1.0), ("c", 1.0)]
    (letter,) = rows.dead
    assert letter["reason"].startswith("ValueError: 1 is odd (test_failed_rows.py, line ")
    assert b'"id":"b","n":1' in letter["value"]


def test_records_and_results_of_one_batch_fail(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts", partitions=1), on_error="dead_letter")
    def counts() -> Rows:
        made = third_part(orders).window(tumbling("10 seconds"), by="id").agg(F.count("part").alias("n"))
        return made.map_arrow(refuse_odd, "id string, n long, window_end timestamp, window_start timestamp")

    given = [order(0, id="a"), order(1, id="a"), order(1, id="b"), order(3, id="a", url="x")]
    rows = run(counts, [{"orders": [*given, END]}, {"orders": [order(3601, url="x")]}])
    assert [(row["id"], row["n"]) for row in rows] == [("a", 2)]
    assert sorted(letter.get("offset", -1) for letter in rows.dead) == [-1, 3, 5]


def test_code_that_fails_between_two_stateful_operators_ends_the_job_with_that_reason(app: App) -> None:
    orders = orders_of(app)

    @app.job(into=app.topic("counts", partitions=1), on_error="dead_letter")
    def counts() -> Rows:
        made = orders.window(tumbling("10 seconds"), by="id").agg(F.count(F.lit(1)).alias("n"))
        even = made.map_arrow(refuse_odd, "window_start timestamp, window_end timestamp, id string, n long")
        return even.window(tumbling("1 minute")).agg(F.sum("n").alias("n"))

    with pytest.raises(StreamingQueryException) as failure:
        run(counts, [{"orders": [order(0)]}, {"orders": [END]}])
    assert "1 is odd" in explain(failure.value)
    assert "between two of them" in explain(failure.value)
