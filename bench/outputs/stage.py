"""The environment of a run: Spark, a broker with the records, and both targets."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from bench.brokers import started_broker
from bench.outputs.aims import CPU, MEASURE, UNIT
from bench.outputs.plan import Plan
from bench.processes import cpu_seconds
from bench.readings import Readings, round_to
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.spark.session import open_session
from headrace.testing.postgres import PostgresServer
from headrace.testing.redis import RedisServer
from tools.maven import Artifact, fetch

TOPIC = "sales"
SCHEMA = "product string, revenue double, orders long, at timestamp"
PARTITIONS = 2
DRIVER = Artifact("org.postgresql", "postgresql", "42.7.8", alone=True)
QUEUED = 200_000

_numbers = itertools.count()


class Moment(NamedTuple):
    """A moment of a trial: its time, and what all processes of the benchmark have used until then."""

    seconds: float
    cpu_seconds: float

    @staticmethod
    def now() -> "Moment":
        return Moment(time.perf_counter(), cpu_seconds(os.getpid()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything is there before the first trial; each trial has a database or an empty Redis of its own."""

    plan: Plan
    spark: SparkSession
    bootstrap: str
    cluster: Cluster
    folder: Path
    postgres: PostgresServer
    redis: RedisServer
    readings: Readings
    progress: Console

    def database(self) -> str:
        """The URL of a new database."""
        return self.postgres.create_database(f"trial_{next(_numbers)}")

    def new_folder(self) -> Path:
        """A folder for checkpoints."""
        return self.folder / f"state-{next(_numbers)}"

    def stream(self) -> DataFrame:
        """The records as typed rows, read by Headrace's source for all systems."""
        rows = (
            self.spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(self.plan.rows))
            .option("valueFormat", "json")
            .option("valueSchema", SCHEMA)
            .option("columns", "value")
        )
        return rows.load().select("value.*")

    def for_each_batch(self, write: Callable[[DataFrame, int], None]) -> list[Moment]:
        """Records when each batch of a query was written."""
        ends: list[Moment] = []

        def write_one(rows: DataFrame, batch: int) -> None:
            write(rows, batch)
            ends.append(Moment.now())

        query = (
            self.stream()
            .writeStream.foreachBatch(write_one)
            .option("checkpointLocation", str(self.new_folder()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return ends

    def note(self, cell: str, system: str, ends: list[Moment]) -> None:
        """Note the rows of a second: of all batches but the first, from the end of that to the end of all."""
        assert len(ends) == self.plan.batches, f"{system} had {len(ends)} batches"
        rows = self.plan.rows * (len(ends) - 1)
        values = {
            UNIT: rows / (ends[-1].seconds - ends[0].seconds),
            CPU: (ends[-1].cpu_seconds - ends[0].cpu_seconds) / rows * 100_000,
        }
        for unit, value in values.items():
            self.readings.add(measure=MEASURE, cell=cell, unit=unit, system=system, value=value)
            self.progress.log(f"{cell} · {system}: {round_to(value):,g} {unit}")


@contextmanager
def opened_stage(plan: Plan, folder: Path, progress: Console, cores: int) -> Iterator[Stage]:
    """An environment whose servers stop at the end of the block."""
    jars = fetch(f"postgresql-jdbc-{DRIVER.version}", [DRIVER])
    with ExitStack() as stack:
        bootstrap = stack.enter_context(started_broker("headrace", folder / "broker"))
        spark = open_session("bench-outputs", cores=cores, more={"spark.jars": str(jars / DRIVER.file)})
        stack.callback(spark.stop)
        stage = Stage(
            plan=plan,
            spark=spark,
            bootstrap=bootstrap,
            cluster=stack.enter_context(Cluster.of(bootstrap)),
            folder=folder,
            postgres=stack.enter_context(PostgresServer(folder, fsync=True, tcp=True)),
            redis=stack.enter_context(RedisServer(folder / "redis")),
            readings=Readings(),
            progress=progress,
        )
        _fill(stage)
        yield stage


def _fill(stage: Stage) -> None:
    create_topics(stage.cluster, [NewTopic(name=TOPIC, partitions=PARTITIONS)])
    producer = Producer(
        {
            "bootstrap.servers": stage.bootstrap,
            "linger.ms": 50,
            "queue.buffering.max.messages": QUEUED,
            "delivery.report.only.error": True,
        }
    )
    for number, key in enumerate(stage.plan.key_of_each()):
        value = (
            f'{{"product":"product-{key}","revenue":{number % 9973}.25,"orders":{number},'
            f'"at":"2026-01-01T{number % 24:02}:{number % 60:02}:00Z"}}'
        )
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
