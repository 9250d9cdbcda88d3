"""Applications as `headrace run` runs them: stages, restarts, changes, resets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, TableView
from headrace.streams.explanation import silence_spark
from headrace.streams.job_folder import JobFolder
from headrace.streams.job_status import REQUEST_TOPIC, STATUS_TOPIC
from headrace.streams.supervisor import State
from headrace.testing import broker
from tests.cli.terminal import wait_until
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)


def shop(make: Callable[[DataFrame], DataFrame], **options: Any) -> App:
    """An application with one job, `sums`, over the topic `numbers`."""
    app = App("shop")
    numbers = app.stream("numbers", "n int, even boolean")

    @app.job(into=app.topic("sums", partitions=1), **options)
    def sums() -> DataFrame:
        return make(numbers.df)

    return app


def two_stages() -> App:
    app = App("shop")
    numbers, large = app.stream("numbers", "n int"), app.stream("large", "n int")

    @app.job(into=app.topic("doubled", key="n"))
    def doubled() -> DataFrame:
        return large.df.selectExpr("n * 2 as n")

    @app.job(into=app.topic("large", key="n"))
    def large_ones() -> DataFrame:
        return numbers.df.filter("n > 10")

    return app


def test_once_runs_jobs_in_the_order_in_which_they_feed_each_other(workshop: Workshop) -> None:
    workshop.write("numbers", {"n": 5}, {"n": 50}, b"five", {"n": 500})
    assert workshop.run_once(two_stages()) == 0
    assert sorted(workshop.read("doubled"), key=len) == [b'{"n":100}', b'{"n":1000}']
    assert workshop.read("large_ones.dead") == [b"five"]
    assert [news.job for news in workshop.recorder.news if news.state is State.FINISHED] == [
        "large_ones",
        "doubled",
    ]
    report = {report.job: report for report in workshop.recorder.reports}["large_ones"]
    assert (report.rows, report.dead, report.lag) == (4, 1, 0)

    workshop.write("numbers", {"n": 60})
    assert workshop.run_once(two_stages()) == 0
    assert len(workshop.read("doubled")) == 3


def test_only_a_run_that_goes_on_publishes_its_status(spark: SparkSession, tmp_path: Path) -> None:
    with broker() as kafka:
        workshop = Workshop(kafka.bootstrap, tmp_path)
        workshop.create("numbers")
        assert workshop.run_once(shop(lambda numbers: numbers)) == 0
        topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics
    assert not {STATUS_TOPIC, REQUEST_TOPIC} & topics.keys()


def test_a_changed_job_is_refused_until_it_is_reset(workshop: Workshop) -> None:
    workshop.write("numbers", {"n": 1, "even": False}, {"n": 2, "even": True})
    counted = shop(lambda numbers: numbers.groupBy("even").agg(F.sum("n").alias("s")), output_mode="update")
    assert workshop.run_once(counted) == 0
    assert len(workshop.read("sums")) == 2

    changed = shop(lambda numbers: numbers.groupBy("n").agg(F.sum("n").alias("s")), output_mode="update")
    assert workshop.run_once(changed) == 1
    (failure,) = [news for news in workshop.recorder.news if news.state is State.FAILED]
    assert "the keys of its aggregation were even boolean, and now they are n int" in failure.text
    assert len(workshop.read("sums")) == 2

    JobFolder.of(workshop.state, "shop", "sums").reset(kind="offset", value=0)
    assert workshop.run_once(changed) == 0
    assert len(workshop.read("sums")) == 4


def test_a_reset_to_the_end_leaves_out_what_is_there(workshop: Workshop) -> None:
    app = shop(lambda numbers: numbers)
    workshop.write("numbers", {"n": 1})
    JobFolder.of(workshop.state, "shop", "sums").reset(kind="end")
    assert workshop.run_once(app) == 0
    workshop.write("numbers", {"n": 2})
    assert workshop.run_once(app) == 0
    assert workshop.read("sums") == [b'{"n":2,"even":null}']


def test_too_many_dead_rows_stop_a_job_before_anything_is_written(workshop: Workshop) -> None:
    workshop.write("numbers", {"n": 1}, b"one", b"two")
    assert workshop.run_once(shop(lambda numbers: numbers, max_dead_letters=1)) == 1
    (failure,) = [news for news in workshop.recorder.news if news.state is State.FAILED]
    assert failure.text.startswith(
        "2 of 3 rows were dead letters in this run, more than max_dead_letters=1 allows"
    )
    assert workshop.read("sums") == workshop.read("sums.dead") == []


def test_a_job_that_fails_says_why_and_goes_on_when_the_reason_is_gone(
    workshop: Workshop, tmp_path: Path
) -> None:
    switch = tmp_path / "mended"

    def halves(numbers: DataFrame) -> DataFrame:
        @F.udf("int")
        def half(n):  # type: ignore[no-untyped-def]  # Spark would take annotations for its own
            if not switch.exists():
                raise ValueError(f"cannot halve {n}")
            return n // 2

        return numbers.select(half("n").alias("n"))

    workshop.write("numbers", {"n": 8})
    with workshop.running(shop(halves)):
        wait_until(lambda: len(workshop.recorder.news) > 1, "the job to fail", deadline_s=100)
        failure = workshop.recorder.news[1]
        assert failure.state is State.WAITING
        assert failure.text.startswith("ValueError: cannot halve 8 (test_runner.py, line ")
        switch.touch()
        wait_until(lambda: workshop.recorder.reports[0].rows > 0, "the job to go on", deadline_s=100)
    assert workshop.read("sums") == [b'{"n":4}']
    assert "Stopping" in workshop.recorder.said[-1]


def test_a_stop_between_two_batches_is_no_error_in_the_log(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    silence_spark()
    app = App("shop")
    numbers = app.stream("numbers", "n int", max_records=1)
    app.job(into=app.topic("copies", partitions=1), name="copies")(lambda: numbers.df)
    workshop.write("numbers", *({"n": n} for n in range(2_000)))
    with workshop.running(app):
        wait_until(
            lambda: workshop.recorder.reports and workshop.recorder.reports[0].rows, "a batch", deadline_s=100
        )
    assert 0 < len(workshop.read("copies")) < 2_000
    assert "Traceback" not in caplog.text


def test_the_records_of_tables_are_among_the_rows_of_a_job(workshop: Workshop) -> None:
    app = App("shop")
    numbers = app.stream("numbers", "n int")
    names = app.table("names", "n int, name string", key="n")

    @app.job(into=app.topic("named", partitions=1))
    def named() -> Rows:
        return numbers.join(names, on="n", as_of="latest")

    @app.job(into=app.view("listed", key="n", partitions=1))
    def listed() -> TableView:
        return names.changes

    workshop.write("names", *({"n": n, "name": f"number {n}"} for n in range(5)))
    workshop.write("numbers", {"n": 1}, {"n": 2})
    assert workshop.run_once(app) == 0
    assert {report.job: report.rows for report in workshop.recorder.reports} == {"named": 7, "listed": 5}
