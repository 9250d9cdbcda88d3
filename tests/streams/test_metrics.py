"""The metrics of jobs, read from the page of a run."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, sqlite, tumbling
from headrace.metrics import Scrape
from headrace.streams.metrics import METRICS, RunMetricsSource
from headrace.streams.report import JobMetrics
from headrace.streams.supervisor import Restarts, State, SupervisedJob, Supervisor
from tests.cli.terminal import wait_until
from tests.metrics.pages import FREE, get, scraped, value
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)
JOB = {"app": "shop", "job_name": "revenue"}


def shop(database: Path) -> App:
    app = App("shop")
    orders = app.stream("orders", "amount double, at timestamp", event_time="at", watermark_delay="0 seconds")

    @app.job(into=[app.topic("revenue", partitions=1), sqlite("revenue", file=database)])
    def revenue() -> Rows:
        return orders.window(tumbling("1 minute")).agg(F.sum("amount").alias("revenue"))

    return app


def test_a_run_serves_the_metrics_of_its_jobs(workshop: Workshop, tmp_path: Path) -> None:
    workshop.write("orders", {"amount": 1, "at": "2026-01-01T10:00:00Z"}, b"no order")
    workshop.write("orders", {"amount": 2, "at": "2026-01-01T10:05:00Z"})
    with workshop.running(shop(tmp_path / "shop.db"), metrics=FREE):
        wait_until(lambda: workshop.recorder.said, "the address")
        (page,) = (text for text in workshop.recorder.said if "Metrics" in text)
        page = page.removeprefix("Metrics are served on ").removesuffix("/metrics.")
        assert get(f"{page}/health/live")[0] == 200
        wait_until(
            lambda: (
                (value(scraped(page), "headrace_job_records_out_total", **JOB, topic="revenue") or 0) >= 1
            ),
            "a window",
            deadline_s=100,
        )
        wait_until(lambda: get(f"{page}/health/ready")[0] == 200, "the job")
        wait_until(
            lambda: value(scraped(page), "headrace_job_watermark_timestamp_seconds", **JOB) is not None,
            "the watermark",
        )
        samples = scraped(page)
    assert value(samples, "headrace_job_running", **JOB) == 1
    assert value(samples, "headrace_job_records_in_total", **JOB) == 3
    assert value(samples, "headrace_job_records_out_total", **JOB, topic="sqlite revenue") == 1
    assert value(samples, "headrace_job_dead_records_total", **JOB) == 1
    assert value(samples, "headrace_job_restarts_total", **JOB) == 0
    watermark = datetime(2026, 1, 1, 10, 5, tzinfo=UTC).timestamp()
    assert value(samples, "headrace_job_watermark_timestamp_seconds", **JOB) == watermark
    assert (value(samples, "headrace_job_watermark_delay_seconds", **JOB) or 0) > 0
    batches = value(samples, "headrace_job_batch_seconds_count", **JOB) or 0
    assert batches >= 1
    assert value(samples, "headrace_job_batch_phase_seconds_count", **JOB, phase="addBatch") == batches


class Idle:
    """A job that a test sets the figures of."""

    name = "revenue"

    def __init__(self) -> None:
        self.metrics = JobMetrics()


def source_of(state: State, starts: int) -> RunMetricsSource:
    charge = SupervisedJob(run=Idle(), restarts=Restarts(), state=state, reason="no topic", starts=starts)  # type: ignore[arg-type]
    supervisor = Supervisor(clock=lambda: 0.0, tell=lambda _: None, charges={"revenue": charge})
    return RunMetricsSource("shop", supervisor, [charge.run], [])  # type: ignore[list-item]


def test_a_job_that_waits_is_not_ready_and_one_that_failed_is_not_live() -> None:
    assert source_of(State.RUNNING, 1).pending() == []
    assert source_of(State.WAITING, 3).pending() == ["revenue is not running"]
    assert source_of(State.FAILED, 1).faults() == ["revenue has failed: no topic"]
    assert source_of(State.FINISHED, 1).faults() == []


def test_restarts_are_counted() -> None:
    scrape = Scrape()
    source_of(State.WAITING, 3).scrape(scrape)
    found = {metric.name: samples for metric, samples in scrape.samples.items()}
    assert found["headrace_job_restarts_total"] == [(JOB, 2)]
    assert found["headrace_job_running"] == [(JOB, False)]
    assert set(found) == {metric.name for metric in METRICS}
