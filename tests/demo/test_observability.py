"""The pipeline of the scenario `observability`, job by job; and the scenario to its end."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.demo import observability
from headrace.demo.observability import DURATION, percentiles
from headrace.streams.job import Job
from headrace.streams.pipeline import load_app
from headrace.testing import run
from tests.sinks.mailbox import Mailbox
from tests.sinks.receiver import Receiver

Row = dict[str, Any]
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as mailbox:
        yield mailbox


@pytest.fixture
def webhooks() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def jobs(
    spark: SparkSession, mailbox: Mailbox, webhooks: Receiver, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Job]:
    """The jobs by their names, with alerts that go to servers of the test."""
    monkeypatch.setenv("ALERT_WEBHOOK", webhooks.url)
    monkeypatch.setenv("HEADRACE_SMTP", mailbox.url)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return {job.name: job for job in load_app(Path(observability.__file__)).jobs}


def log(minute: float, severity: int) -> Row:
    return {"time": at(minute), "service": "shop", "severity_number": severity, "body": "request"}


def test_an_error_rate_is_that_of_five_minutes(jobs: dict[str, Job]) -> None:
    logs = [log(0.5, 9), log(1.5, 17), log(4.5, 9), log(5.5, 21), log(30, 9)]
    rows = run(jobs["error_rate"], {"otel.logs": logs})
    found = {row["window_start"]: (row["logs"], row["errors"], row["rate"]) for row in rows}
    assert found[at(0)] == (3, 1, 1 / 3)
    assert found[at(1)] == (3, 2, 2 / 3)
    assert found[at(5)] == (1, 1, 1.0)


def histogram(minute: float, counts: list[int], *, metric: str = DURATION) -> Row:
    point = {"time": at(minute), "service": "shop", "metric": metric, "temporality": "delta"}
    return {**point, "bounds": [0.1, 0.2, 0.5], "bucket_counts": counts}


def test_percentiles_are_those_of_all_histograms_of_a_minute(jobs: dict[str, Job]) -> None:
    points = [
        histogram(0.2, [50, 0, 0, 0]),
        histogram(0.8, [0, 50, 0, 0]),
        histogram(0.9, [0, 0, 0, 9], metric="another"),
        histogram(9, [1, 0, 0, 0]),
    ]
    (row,) = run(jobs["latency"], {"otel.metrics": points})
    assert (row["window_start"], row["requests"]) == (at(0), 100)
    assert (row["p50"], row["p95"], row["p99"]) == pytest.approx((0.1, 0.19, 0.198))


def test_percentiles_are_interpolated_and_end_at_the_last_finite_bound() -> None:
    assert percentiles([0.1, 0.2, float("inf")], [0, 100, 0]) == pytest.approx([0.15, 0.195, 0.199])
    assert percentiles([0.1, 0.2, float("inf")], [1, 0, 99]) == [0.2, 0.2, 0.2]


def test_a_service_with_many_errors_is_reported_once_an_hour(
    jobs: dict[str, Job], webhooks: Receiver, mailbox: Mailbox
) -> None:
    def rate(minute: int, service: str, rate: float, logs: int = 100) -> Row:
        return {"window_start": at(minute), "service": service, "logs": logs, "rate": rate}

    few, high = rate(0, "few", 1.0, logs=3), [rate(minute, "shop", 0.2) for minute in range(8)]
    rows = run(
        jobs["error_alerts"], {"error_rate": [few, rate(0, "fine", 0.1), *high, rate(70, "shop", 0.5)]}
    )
    assert [(row["service"], row["window_start"]) for row in rows] == [("shop", at(0)), ("shop", at(70))]
    assert webhooks.rows("alert") == sorted(row["alert"] for row in rows)
    assert sorted(str(mail["Subject"]) for mail in mailbox.mails) == [
        "shop: 20 % errors in five minutes",
        "shop: 50 % errors in five minutes",
    ]


def test_a_minute_that_is_slower_than_the_hour_before_it_is_reported(
    jobs: dict[str, Job], webhooks: Receiver
) -> None:
    p95 = {minute: 0.2 + 0.01 * (minute % 3) for minute in range(90)} | {2: 9.0, 80: 0.9, 81: 0.9}
    minutes = [{"window_start": at(each), "service": "shop", "p95": value} for each, value in p95.items()]
    (row,) = run(jobs["latency_alerts"], {"latency": minutes}, batches=2)
    assert (row["window_start"], row["minutes"], round(row["mean"], 2)) == (at(80), 60, 0.21)
    assert len(webhooks.requests) == 1
