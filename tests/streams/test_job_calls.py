"""The function of a job is called once for each start, whatever its operators have to know of each other."""

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, hopping, tumbling
from headrace.client.cluster import Cluster
from headrace.streams.job_run import JobRun
from headrace.streams.run_context import RunContext
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)

TIMES: Any = {"event_time": "at", "watermark_delay": "1 minute"}


def click(user: int, minute: int) -> dict[str, Any]:
    return {"user": user, "at": f"2026-01-01T12:{minute:02}:00Z"}


def test_a_function_is_called_once_for_each_start(workshop: Workshop) -> None:
    """A stream that is used twice, another that may be idle, a table, a join, late and failing rows."""
    app, calls = App("shop"), []
    clicks = app.stream("clicks", "user long, at timestamp", **TIMES)
    orders = app.stream("orders", "user long, at timestamp", idle_timeout="1 hour", **TIMES)
    users = app.table("users", "id long, name string", key="id")

    @app.job(into=app.topic("out"), name="work", late_topic="late", on_error="dead_letter")
    def work() -> Any:
        calls.append("work")
        events = F.count("*").alias("events")
        minutes = clicks.window(tumbling("1 minute")).agg(events)
        longer = clicks.window(hopping("4 minutes", every="2 minutes")).agg(events)
        named = clicks.join(orders, on="user", within="1 minute").join(
            users, on={"user": "id"}, as_of="latest"
        )
        text = named.df.select(F.concat("name", F.lit("!")).alias("text"))
        numbers = minutes.df.unionByName(longer.df).select(F.col("events").cast("string").alias("text"))
        return text.union(numbers)

    workshop.write("users", {"id": 1, "name": "Ada"})
    workshop.write("orders", click(1, 1), click(1, 20))
    workshop.write("clicks", click(1, 1), click(1, 20))
    assert workshop.run_once(app) == 0, workshop.recorder.news
    assert calls == ["work"]
    workshop.write("clicks", click(1, 2), click(1, 40))
    workshop.write("orders", click(1, 40))
    assert workshop.run_once(app) == 0, workshop.recorder.news
    assert calls == ["work", "work"]
    texts = [json.loads(row)["text"] for row in workshop.read("out")]
    assert texts.count("Ada!") == 3
    assert len(workshop.read("late")) > 0


def test_questions_before_a_start_keep_the_plan_for_it(
    app: App, spark: SparkSession, workshop: Workshop
) -> None:
    calls = []
    clicks = app.stream("clicks", "user long, at timestamp", **TIMES)

    @app.job(into=app.topic("out"))
    def work() -> Any:
        calls.append("work")
        return clicks.df

    workshop.create("clicks")
    with Cluster.of(workshop.bootstrap) as cluster:
        context = RunContext(spark=spark, bootstrap=workshop.bootstrap, cluster=cluster, state=workshop.state)
        run = JobRun(work, context, once=True)
        assert run.inputs() == ("clicks",)
        assert run.output_schema().names == ["user", "at"]
        run.provide()
        run.start()
        while run.is_active():
            run.wait(100)
    assert calls == ["work"]
