"""Random plans give after every batch what recomputation gives: whatever the disorder, cuts and crashes."""

import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.engine.plan_model import (
    DELAY_MS,
    SCHEMA,
    Event,
    Part,
    Plan,
    Shape,
    consolidated,
    random_parts,
    random_plan,
)

pytestmark = pytest.mark.timeout(600)

STEPS = ("begun", "computed", "written", "marked", "committed")
PARTITIONS = "spark.sql.shuffle.partitions"
"""What Spark takes from the number of cores."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def job_of(plans: Sequence[Plan], prepare: Callable[[], None]) -> Job:
    """A job with some plans: the rows of each have its number. `prepare` is called before each start."""
    app = App("shop")
    delay = f"{DELAY_MS} milliseconds"
    options: dict[str, Any] = {"event_time": "at", "watermark_delay": delay, "max_ahead": None}
    events = app.stream("events", SCHEMA, **options)
    others = app.stream("others", SCHEMA, **options)

    def numbered(number: int, plan: Plan) -> DataFrame:
        shape = plan.shapes()[-1]
        more = F.to_json(F.array(*(_number(name) for name in shape.more)))
        columns = F.lit(number).alias("plan"), "key", "value", F.col(shape.time).alias("at")
        return plan.build(events, others).df.select(*columns, more.alias("more"))

    @app.job(into=app.topic("results"))
    def results() -> Rows | DataFrame:
        prepare()
        if len(plans) == 1:
            return plans[0].build(events, others).rows
        return reduce(DataFrame.unionByName, (numbered(*each) for each in enumerate(plans)))

    return results


def _number(name: str) -> Any:
    if name == "window_start":
        return F.unix_millis(name)
    return F.col(name).cast("long")


def results_of(rows: Sequence[dict[str, Any]], plans: Sequence[Plan]) -> list[tuple[int, Event]]:
    return [_event(row, plans) for row in rows]


def _event(row: dict[str, Any], plans: Sequence[Plan]) -> tuple[int, Event]:
    if len(plans) > 1:
        more = tuple(json.loads(row["more"]))
        return row["plan"], Event(row["key"], row["value"], _ms(row["at"]), more)
    shape: Shape = plans[0].shapes()[-1]
    more = tuple(_ms(row[name]) for name in shape.more)
    return 0, Event(row["key"], row["value"], _ms(row[shape.time]), more)


def _ms(value: Any) -> Any:
    return (value - EPOCH) // timedelta(milliseconds=1) if isinstance(value, datetime) else value


def as_inputs(part: Part) -> dict[str, list[dict[str, Any]]]:
    return {
        topic: [
            {
                "key": row.key,
                "value": row.value,
                "at": None if row.at_ms is None else EPOCH + timedelta(milliseconds=row.at_ms),
            }
            for row in rows
        ]
        for topic, rows in (("events", part.events), ("others", part.others))
    }


def check_plans(spark: SparkSession, seed: int, count: int) -> None:
    """Run `count` random plans in one job, with a crash in a batch and other numbers of tasks each time."""
    before = spark.conf.get(PARTITIONS)
    try:
        _check_plans(spark, seed, count)
    finally:
        spark.conf.set(PARTITIONS, before or "1")


def _check_plans(spark: SparkSession, seed: int, count: int) -> None:
    source = random.Random(seed)
    plans, parts = [random_plan(source) for _ in range(count)], random_parts(source)
    waits_for_others = any(plan.is_join for plan in plans)
    crash = (source.choice(STEPS), source.randrange(len(parts)))
    job = job_of(plans, lambda: spark.conf.set(PARTITIONS, str(source.randint(1, 4))))
    rows = results_of(run(job, [as_inputs(part) for part in parts], crash=crash), plans)
    wanted = [plan.run(parts, waits_for_others=waits_for_others) for plan in plans]
    told = f"seed {seed}, crash {crash}, plans {plans}, parts {parts}"
    for number in range(len(parts)):
        size = sum(each[number].total() for each in wanted)
        batch, rows = rows[:size], rows[size:]
        found = [consolidated([event for plan, event in batch if plan == number]) for number in range(count)]
        assert found == [each[number] for each in wanted], f"part {number}: {told}"
    assert not rows, told


@pytest.mark.parametrize("seed", [2, 3])
def test_a_random_plan_gives_what_its_rows_come_to(seed: int, spark: SparkSession) -> None:
    check_plans(spark, seed, count=1)


@pytest.mark.parametrize("seed", [12])
def test_several_plans_in_one_job_do_not_disturb_each_other(seed: int, spark: SparkSession) -> None:
    check_plans(spark, seed, count=3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_random_plans_give_what_their_rows_come_to(seed: int, spark: SparkSession) -> None:
    check_plans(spark, seed, count=1 + seed % 3)
