"""What `headrace explain` says of a job: operators, state, what is pushed down, and Spark's own parts."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from headrace.cli.app import app as cli

PIPELINE = """
from pyspark.sql import functions as F

from headrace import App, tumbling

app = App("shop")
times = {"event_time": "at", "watermark_delay": "1 minute"}
orders = app.stream("orders", "id long, product string, amount double, at timestamp", **times)
payments = app.stream("payments", "order_id long, at timestamp", **times)
users = app.table("users", "id long, name string", key="id")


@app.job(into=app.topic("revenue"))
def revenue():
    minutes = orders.window(tumbling("1 minute"), by="product").agg(F.sum("amount").alias("revenue"))
    return minutes.df.filter("revenue > 1")


@app.job(into=app.topic("paid"))
def paid():
    pairs = orders.join(payments, on={"id": "order_id"}, within="5 minutes").join(users, on="id")
    return pairs.df.groupBy(F.window("at", "1 minute"), "name").count()


@app.job(into=app.topic("wrong"))
def wrong():
    return orders.window(tumbling("1 minute"), by="colour").agg(F.count("*"))
"""


@pytest.fixture
def pipeline(tmp_path: Path, spark: SparkSession) -> Path:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE, encoding="utf-8")
    return path


def test_a_plan_is_shown_as_a_tree(pipeline: Path) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(pipeline), "revenue"])
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "job shop.revenue: struct<window_start:timestamp,window_end:timestamp,product:string,revenue:double>",
        "└─ Spark: Filter",
        "   └─ window-1  pipeline.py, line 15",
        "      computes  revenue",
        "      state     partial aggregates of windows of 60 s every 60 s by product",
        "      └─ Spark: Project",
        "         └─ source-1  pipeline.py, line 15",
        "            topic        orders",
        "            event time   at, watermark delay 1 minute",
        "            pushed down  partial aggregates of window-1",
    ]


def test_a_plan_is_shown_as_json(pipeline: Path) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(pipeline), "paid", "--json"])
    assert shown.exit_code == 0, shown.output
    plan = json.loads(shown.output)
    assert [operator["name"] for operator in plan["operators"]] == [
        "source-1",
        "source-2",
        "join-1",
        "table-join-1",
    ]
    assert [operator["keeps_state"] for operator in plan["operators"]] == [False, False, True, False]
    assert (plan["rows"]["operators"], plan["rows"]["stateful"]) == (["table-join-1"], ["Aggregate"])
    assert plan["held_back_ms"] == 300_001
    assert plan["operators"][2]["inputs"][0]["operators"] == ["source-1", "source-2"]


def test_a_mistake_in_a_job_is_shown_with_its_line(pipeline: Path) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(pipeline), "wrong"])
    assert shown.exit_code != 0
    assert "by='colour': there is no such column" in shown.output
    assert "pipeline.py, line 27" in shown.output


def test_a_job_that_is_not_there_is_named(pipeline: Path) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(pipeline), "nothing"])
    assert shown.exit_code != 0
    assert "has no job named 'nothing'" in shown.output
