"""State that Spark keeps for a job: its snapshots are written, and a restart goes on from them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.streams.supervisor import State
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)

MAINTENANCE = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
}


@pytest.fixture
def _frequent_maintenance(spark: SparkSession) -> Iterator[None]:
    """Lets Spark's state stores write snapshots now, and not once a minute."""
    jvm: Any = spark.sparkContext._jvm
    stores = jvm.org.apache.spark.sql.execution.streaming.state.StateStore
    stores.stop()  # the thread of the maintenance takes its interval when the first store is opened
    for name, value in MAINTENANCE.items():
        spark.conf.set(name, value)
    yield
    for name in MAINTENANCE:
        spark.conf.unset(name)
    stores.stop()


def totals(workshop: Workshop) -> dict[str, int]:
    rows = map(json.loads, workshop.read("totals"))
    return {row["user"]: row["total"] for row in rows}


def wait_for_total(workshop: Workshop, user: str, total: int) -> None:
    while totals(workshop).get(user) != total:
        assert all(news.state is State.RUNNING for news in workshop.recorder.news), workshop.recorder.news


@pytest.mark.usefixtures("_frequent_maintenance")
def test_a_job_outlives_the_maintenance_of_its_state_and_goes_on_from_a_snapshot(
    workshop: Workshop, app: App
) -> None:
    payments = app.stream("payments", "user string, amount long")

    @app.job(into=app.view("totals", key="user"))
    def by_user() -> Any:
        return payments.df.groupBy("user").agg(F.sum("amount").alias("total"))

    state = workshop.state / "shop" / "by_user" / "checkpoint-1" / "state"
    with workshop.running(app):
        expected = 0
        while not _snapshots(state):
            workshop.write("payments", {"user": "ada", "amount": 1})
            expected += 1
            wait_for_total(workshop, "ada", expected)
    workshop.write("payments", {"user": "ada", "amount": 10})
    assert workshop.run_once(app) == 0
    assert totals(workshop) == {"ada": expected + 10}


def _snapshots(state: Path) -> list[Path]:
    """The snapshots of partitions that have rows: those of an empty one copy no file of RocksDB's."""
    filled = [path.parent.parent for path in state.rglob("SSTs/*.sst")]
    return [path for folder in filled for path in folder.glob("[0-9]*.zip")]
