"""A storm over outputs: the job and its database die again and again, and every row arrives once."""

import json
import random
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from headrace.testing.postgres import PostgresServer
from tests.broker.processes import BrokerProcess
from tests.soak.pipeline_process import PipelineProcess
from tests.soak.summary import RecordProperty
from tests.spark.transactional_pipeline import read_committed

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

ROWS = 20_000
KEYS = 97
KILLS = 6
PIPELINE = """
from pyspark.sql import functions as F
from headrace import App, postgres
from headrace.streams import outputs

outputs.INLINE_BYTES = 1_000  # most tasks copy their rows, as in large batches
app = App("storm")
numbers = app.stream("numbers", "n int, k int", max_records=500, partitions=4)

@app.job(into=[postgres("log"), app.topic("copy", partitions=1)])
def copied():
    return numbers.df

@app.job(into=postgres("sums", key="k"))
def summed():
    return numbers.df.groupBy("k").agg(F.sum("n").alias("sum"), F.count("n").alias("count"))
"""


def write_slowly(broker: str, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for n in range(ROWS):
        producer.produce("numbers", json.dumps({"n": n, "k": n % KEYS}))
        if n % 100 == 99:
            producer.flush()
            if not ended.is_set():
                time.sleep(0.5)
    producer.flush()


def test_every_row_arrives_once_though_job_and_database_are_killed(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    record_property("seed", seed)
    record_property("kills", KILLS)
    ended = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-") as folder,
        BrokerProcess(tmp_path / "data") as kafka,
        PostgresServer(Path(folder)) as server,
    ):
        database = server.create_database("storm")
        pipeline = PipelineProcess(
            tmp_path, PIPELINE, HEADRACE_BROKER=kafka.address, HEADRACE_POSTGRES=database
        )
        writer = threading.Thread(target=write_slowly, args=(kafka.address, ended))
        writer.start()
        pipeline.start()
        for _ in range(KILLS):
            pipeline.wait_until_running("copied", "summed")
            time.sleep(chance.uniform(0, 15))
            if chance.random() < 0.5:
                pipeline.kill()
                pipeline.start()
            else:
                server.kill()
                time.sleep(chance.uniform(0, 3))
                server.start()
        pipeline.kill()
        ended.set()
        writer.join()
        pipeline.finish()
        check(database, kafka.address)


def check(database: str, broker: str) -> None:
    with psycopg.connect(database) as connection:
        log = connection.execute("SELECT n FROM log ORDER BY n").fetchall()
        sums = connection.execute("SELECT k, sum, count FROM sums ORDER BY k").fetchall()
    assert [n for (n,) in log] == list(range(ROWS))
    expected = {k: range(k, ROWS, KEYS) for k in range(KEYS)}
    assert sums == [(k, sum(numbers), len(numbers)) for k, numbers in expected.items()]
    (values,) = read_committed(broker, "copy", 1)
    copied = sorted(json.loads(value)["n"] for value in values)
    assert copied == list(range(ROWS))
