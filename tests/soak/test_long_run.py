"""A job keeps state for half an hour, next to a stateful operator of Spark's, with Spark's maintenance."""

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.processes import BrokerProcess
from tests.soak.pipeline_process import PipelineProcess
from tests.soak.summary import RecordProperty
from tests.spark.transactional_pipeline import read_committed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MINUTES: Final = 30
KEYS: Final = 20
EVENTS_OF_A_ROUND: Final = 50
MOST_FILES: Final = 400
"""Spark keeps what the last hundred batches need; a job of half an hour has more than a thousand."""
PIPELINE: Final = """
from pyspark.sql import functions as F
from headrace import App, tumbling

app = App("long")
SCHEMA = "key long, amount long, at timestamp"
events = app.stream("events", SCHEMA, event_time="at", watermark_delay="2 seconds", partitions=2)


@app.job(into=app.topic("counts", partitions=1), trigger_interval="1 second")
def counts():
    sums = [F.count("*").alias("events"), F.sum("amount").alias("total")]
    ours = events.window(tumbling("10 seconds"), by="key").agg(*sums).df
    spark = events.df.groupBy(F.window("at", "10 seconds"), "key").agg(*sums)
    spark = spark.select("window.start", "key", "events", "total", F.lit("spark").alias("system"))
    named = ours.withColumnRenamed("window_start", "start")
    return named.select("start", "key", "events", "total", F.lit("ours").alias("system")).unionByName(spark)
"""


def test_a_job_with_state_runs_for_half_an_hour_beside_sparks_own(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        run_for(MINUTES, kafka.address, tmp_path, record_property)


def run_for(minutes: float, broker: str, folder: Path, record_property: RecordProperty) -> None:
    """Let the job run, and compare what both operators gave with what was written."""
    admin = AdminClient({"bootstrap.servers": broker})
    (made,) = admin.create_topics([NewTopic("events", 2)]).values()
    made.result(30)
    pipeline = PipelineProcess(folder, PIPELINE, HEADRACE_BROKER=broker)
    pipeline.start()
    try:
        pipeline.wait_until_running("counts")
        expected = write_for(minutes, broker)
        assert " fails" not in pipeline.log()
        files = most_files(folder / ".headrace")
        record_property("most_files", files)
        assert files < MOST_FILES
    finally:
        pipeline.kill()
    pipeline.finish()
    found: dict[str, Counter[Any]] = {"ours": Counter(), "spark": Counter()}
    rows = [json.loads(value) for value in read_committed(broker, "counts", 1)[0]]
    for row in rows:
        start = datetime.fromisoformat(row["start"])
        found[row["system"]][start, row["key"], row["events"], row["total"]] += 1
    record_property("windows", len(expected))
    wanted = Counter((*place, *sums) for place, sums in expected.items())
    assert found["ours"] == wanted
    assert found["spark"] == wanted


def write_for(minutes: float, broker: str) -> dict[tuple[datetime, int], tuple[int, int]]:
    """Write events for so long; number and sum of each window and key, up to the last that closes."""
    producer = Producer({"bootstrap.servers": broker})
    sums: dict[tuple[datetime, int], tuple[int, int]] = {}
    end, number = time.monotonic() + 60 * minutes, 0
    while time.monotonic() < end:
        for _ in range(EVENTS_OF_A_ROUND):
            number += 1
            at = datetime.now(UTC) - timedelta(milliseconds=number * 37 % 1_000)
            _write(producer, sums, number % KEYS, number % 100, at)
        assert producer.flush(60) == 0
        time.sleep(0.5)
    # It closes all windows but its own.
    _write(producer, {}, KEYS, 0, datetime.now(UTC) + timedelta(minutes=1))
    assert producer.flush(60) == 0
    return sums


def _write(producer: Producer, sums: dict[Any, tuple[int, int]], key: int, amount: int, at: datetime) -> None:
    start = at.replace(second=at.second // 10 * 10, microsecond=0)
    events, total = sums.get((start, key), (0, 0))
    sums[start, key] = events + 1, total + amount
    producer.produce("events", json.dumps({"key": key, "amount": amount, "at": at.isoformat()}))


def most_files(state: Path) -> int:
    """How many files the fullest folder of a state folder has."""
    return max(sum(1 for _ in folder.iterdir()) for folder in [state, *state.rglob("*/")] if folder.is_dir())
