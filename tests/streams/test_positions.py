"""Where jobs begin and where they continue, after crashes, resets, moves, and changes of their topics."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace import App, sqlite
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic
from headrace.streams.explanation import root_cause
from headrace.streams.job import Job
from headrace.streams.job_folder import JobFolder, JobIsElsewhere
from headrace.streams.job_run import JobRun
from headrace.streams.run_context import RunContext
from headrace.testing import EmbeddedBroker
from headrace.testing.jobs import TOPIC_STEPS, Crash
from tests.spark.records import delete_records, delete_topic
from tests.streams.workshop import Workshop


class Place:
    """A broker with a topic `orders`, and machines that jobs run on, each with a state folder of its own."""

    def __init__(self, spark: SparkSession, bootstrap: str, cluster: Cluster, folder: Path) -> None:
        self.spark, self.bootstrap, self.cluster, self.folder = spark, bootstrap, cluster, folder
        self.written = 0
        self.machine().provide([NewTopic(name="orders", partitions=1)])

    def machine(self, name: str = "one", *, shared: bool = False) -> RunContext:
        return RunContext(
            spark=self.spark,
            bootstrap=self.bootstrap,
            cluster=self.cluster,
            state=self.folder / name,
            checkpoints=str(self.folder / "shared") if shared else None,
        )

    def write(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for n in range(self.written, self.written + count):
            producer.produce("orders", json.dumps({"n": n}).encode())
        assert producer.flush(100) == 0
        self.written += count

    def run(self, job: Job, where: RunContext | None = None, *, crash: tuple[str, int] | None = None) -> None:
        """Run the job to the end of what is there, unless it crashes before."""

        def step(name: str, batch: int) -> None:
            if (name, batch) == crash:
                raise Crash("killed")

        run = JobRun(job, where or self.machine(), once=True, steps=step)
        try:
            run.start()
            while run.is_active():
                run.wait(100)
        except Exception:
            if crash is None:
                raise
        finally:
            run.stop()

    def read(self, topic: str = "copy") -> list[int]:
        values = Workshop(self.bootstrap, self.folder).read(topic)
        return sorted(json.loads(value)["n"] for value in values)


@pytest.fixture
def place(spark: SparkSession, headrace_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Place]:
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        yield Place(spark, headrace_broker.bootstrap, cluster, tmp_path)


def copy_of(app: App, *more: object, start: str = "earliest") -> Job:
    orders = app.stream("orders", "n long", start=start)
    return app.job(into=[app.topic("copy", partitions=1), *more], name="copy")(lambda: orders.df)


@pytest.mark.parametrize("step", TOPIC_STEPS)
def test_a_job_that_begins_at_the_end_begins_there_once(place: Place, app: App, step: str) -> None:
    job = copy_of(app, start="latest")
    place.write(3)
    place.run(job, crash=(step, 0))
    place.write(2)
    place.run(job)
    assert place.read() == [3, 4]


@pytest.mark.parametrize("step", ["computed", "committed"])
def test_a_job_that_was_reset_to_the_end_begins_there_once(place: Place, app: App, step: str) -> None:
    job = copy_of(app)
    place.write(3)
    place.run(job)
    place.machine().folder(job).reset(kind="end")
    place.run(job, crash=(step, 0))
    place.write(2)
    place.run(job)
    assert place.read() == [0, 1, 2, 3, 4]


def test_a_job_that_was_reset_to_an_offset_reads_it_once_though_the_log_has_moved_on(
    place: Place, app: App
) -> None:
    job = copy_of(app)
    place.write(4)
    place.run(job)
    place.machine().folder(job).reset(kind="offset", value=2)
    place.run(job, crash=("marked", 0))
    place.run(job)
    assert place.read() == [0, 1, 2, 2, 3, 3]
    delete_records(place.bootstrap, "orders", 0, 4)
    place.write(1)
    place.run(job)
    assert place.read() == [0, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize("step", ["delivered", "committed"])
def test_a_driver_on_another_machine_continues_with_shared_checkpoints(
    place: Place, app: App, step: str
) -> None:
    file = place.folder / "out.db"
    job = copy_of(app, sqlite("log", file=str(file)))
    place.write(2)
    place.run(job, place.machine("one", shared=True))
    place.write(2)
    place.run(job, place.machine("one", shared=True), crash=(step, 1))
    place.run(job, place.machine("two", shared=True))
    place.machine("two", shared=True).folder(job).reset(kind="end")
    place.run(job, place.machine("two", shared=True))
    place.write(1)
    place.run(job, place.machine("three", shared=True))
    rows = sqlite3.connect(file).execute("SELECT n FROM log ORDER BY n")
    assert ([n for (n,) in rows], place.read()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_a_second_run_under_another_state_folder_is_refused_and_told_how_to_continue(
    place: Place, app: App
) -> None:
    job = copy_of(app)
    place.write(2)
    place.run(job)
    with pytest.raises(JobIsElsewhere, match=f"{place.folder}/one/shop/copy on .*headrace job reset"):
        place.run(job, place.machine("two"))
    place.write(1)
    place.run(job)
    assert place.read() == [0, 1, 2]
    JobFolder.of(place.folder / "two", "shop", "copy").reset(kind="start")
    place.run(job, place.machine("two"), crash=("written", 0))
    place.run(job, place.machine("two"))
    assert place.read() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(JobIsElsewhere):
        place.run(job)


def test_a_stopped_job_notices_that_its_topic_was_re_created(place: Place, app: App) -> None:
    job = copy_of(app)
    place.write(2)
    place.run(job)
    delete_topic(place.bootstrap, "orders")
    place.cluster.refresh()
    place.machine().provide([NewTopic(name="orders", partitions=1)])
    place.write(5)
    with pytest.raises(StreamingQueryException) as failure:
        place.run(job)
    cause = root_cause(failure.value)
    assert cause.kind.endswith("DataLost")
    assert "the topic 'orders' was deleted and re-created" in cause.message
    place.machine().folder(job).reset(kind="start")
    place.run(job)
    assert place.read() == list(range(7))
