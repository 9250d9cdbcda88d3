"""What a job cannot use is a dead letter that names its offset, and never the end of the job."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, correct_clock, tumbling
from headrace.errors import Misuse
from headrace.protocol.batch import build_batch
from headrace.streams.explanation import explain
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.testing import run
from tests.broker.wire_client import WireClient
from tests.spark.records import create_topic
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(300)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
SCHEMA = "product string, url string, at timestamp"


def counts(app: App, **options: Any) -> Job:
    """Orders by the minute."""
    orders = app.stream("orders", SCHEMA, event_time="at", watermark_delay="1 minute", **options)

    @app.job(into=app.topic("counts", partitions=1))
    def counts() -> Rows:
        return orders.window(tumbling("1 minute")).agg(F.count(F.lit(1)).alias("orders"))

    return counts


def reasons(rows: Any) -> dict[int, str]:
    return {letter["offset"]: letter["reason"] for letter in rows.dead}


def test_epoch_milliseconds_are_event_times(app: App) -> None:
    given = [{"at": NOON_MS}, {"at": NOON_MS + 59_999}, {"at": NOON_MS + 600_000}]
    assert [row["orders"] for row in run(counts(app), {"orders": given})] == [2]


def test_a_time_that_cannot_be_true_is_a_dead_letter_and_moves_no_watermark(app: App) -> None:
    first = [
        {"at": NOON},
        {"at": 99_999_999_999_999},
        {"at": "9999-12-31T00:00:00Z"},
        {"at": -1},
        {"url": "x"},
    ]
    then = [{"at": NOON + timedelta(seconds=30)}, {"at": NOON + timedelta(minutes=10)}]
    rows = run(counts(app), [{"orders": first}, {"orders": then}])
    assert [(row["window_start"], row["orders"]) for row in rows] == [(NOON, 2)]
    found = reasons(rows)
    assert sorted(found) == [1, 2, 3]
    assert found[1].startswith("at: 5138-11-16T09:46:39.999000Z is more than 86400 seconds (max_ahead) after")
    assert found[3] == "at: 1969-12-31T23:59:59.000000Z is before 1970"


def test_how_far_ahead_a_time_may_be_is_judged_by_the_time_of_its_record(app: App) -> None:
    def order(ahead: timedelta) -> tuple[None, dict[str, Any], datetime]:
        return None, {"at": NOON + ahead}, NOON

    given = [order(timedelta(0)), order(timedelta(minutes=9)), order(timedelta(minutes=11))]
    rows = run(counts(app, max_ahead=timedelta(minutes=10)), {"orders": given})
    assert sorted(reasons(rows)) == [2]
    rows = run(counts(App("other"), max_ahead=None), {"orders": [*given, order(timedelta(days=900))]})
    assert (len(rows), rows.dead) == (3, [])


def test_a_corrected_time_is_never_far_after_the_record(app: App) -> None:
    readings = app.stream(
        "readings",
        "device string, occurred timestamp, sent timestamp",
        event_time=correct_clock("occurred", "sent"),
        watermark_delay="1 minute",
    )

    @app.job(into=app.topic("dated", partitions=1))
    def dated() -> Any:
        return readings.df.select("device", "event_time", "clock.done")

    far = {"device": "a", "occurred": "9999-01-01T00:00:00Z"}
    (row,) = run(dated, {"readings": [(None, far, NOON)]})
    assert (row["event_time"], row["done"]) == (NOON, "received")


@pytest.mark.parametrize("options", [{"max_ahead": "soon"}, {"time_unit": "minutes"}])
def test_an_unknown_unit_or_duration_is_refused(app: App, options: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(options))):
        counts(app, **options)


def third_part(app: App, **options: Any) -> Job:
    orders = app.stream("orders", SCHEMA)

    @app.job(into=app.topic("parts", partitions=1), **options)
    def parts() -> Any:
        return orders.df.select("product", F.expr("split(url, '/')[2]").alias("part"))

    return parts


GOOD = [{"product": str(number), "url": f"a/b/{number}"} for number in range(6)]
BAD = [{"product": "bad", "url": "a"}]


def test_a_row_that_an_expression_fails_on_is_a_dead_letter(app: App) -> None:
    given = [*GOOD[:3], *BAD, b"{", *GOOD[3:], *BAD]
    rows = run(third_part(app, on_error="dead_letter"), [{"orders": given}, {"orders": GOOD[:1]}])
    assert [row["part"] for row in rows] == ["0", "1", "2", "3", "4", "5", "0"]
    assert [(letter["offset"], letter["partition"], letter["topic"]) for letter in rows.dead] == [
        (3, 0, "orders"),
        (4, 0, "orders"),
        (8, 0, "orders"),
    ]
    assert b'"url": "a"' in rows.dead[0]["value"]
    assert "index 2 is out of bounds" in rows.dead[0]["reason"]


@pytest.mark.parametrize("step", ["computed", "written", "committed"])
def test_a_crash_doubles_neither_rows_nor_dead_letters(app: App, step: str) -> None:
    job = third_part(app, on_error="dead_letter")
    rows = run(job, {"orders": [*GOOD[:2], *BAD, *GOOD[2:4]]}, crash=(step, 0))
    assert [row["part"] for row in rows] == ["0", "1", "2", "3"]
    assert sorted(reasons(rows)) == [2]


def test_a_row_that_a_function_in_python_fails_on_is_a_dead_letter(app: App) -> None:
    orders = app.stream("orders", SCHEMA)

    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        for url in batch["url"].to_pylist():
            if "/" not in url:
                raise ValueError(f"{url!r} is no address")
        return pa.record_batch({"product": batch["product"]})

    @app.job(into=app.topic("checked", partitions=1), on_error="dead_letter")
    def checked() -> Rows:
        return orders.map_arrow(lengths, "product string")

    rows = run(checked, {"orders": [*GOOD[:2], *BAD, *GOOD[2:]]})
    assert [row["product"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert reasons(rows)[2].startswith("ValueError: 'a' is no address (test_unusable_rows.py, line ")


def test_the_error_of_a_job_that_ends_names_the_offsets_of_its_batch(app: App) -> None:
    with pytest.raises(StreamingQueryException) as failure:
        run(third_part(app), {"orders": [*GOOD[:2], *BAD]})
    assert "out of bounds" in explain(failure.value)
    assert "in batch 0: orders/0 offsets 0 to 2" in explain(failure.value)


@pytest.mark.parametrize("format_", ["json", "raw"])
def test_a_batch_that_cannot_be_read_is_a_dead_letter_and_the_job_goes_on(
    workshop: Workshop, format_: Literal["json", "raw"]
) -> None:
    app = App("shop")
    orders = app.stream("orders", "product string" if format_ == "json" else None, format=format_)

    @app.job(into=app.topic("copies", partitions=1, format="raw" if format_ == "raw" else "json"))
    def copies() -> Any:
        return orders

    create_topic(workshop.bootstrap, "orders")
    workshop.write("orders", {"product": "tea"})
    now_ms = int(time.time() * 1000)
    bad = build_batch(b"no records at all here", 2, base_timestamp=now_ms, max_timestamp=now_ms)
    with WireClient(workshop.bootstrap) as client:
        client.produce("orders", bytes(bad))
    workshop.write("orders", {"product": "pot"})
    assert workshop.run_once(app) == 0
    assert [json.loads(value)["product"] for value in workshop.read("copies")] == ["tea", "pot"]
    assert len(workshop.read("copies.dead")) == 1
    (report,) = workshop.recorder.reports
    assert report.dead == 1


def test_rows_without_an_event_time_are_counted(workshop: Workshop) -> None:
    app = App("shop")
    job = counts(app)
    create_topic(workshop.bootstrap, "orders")
    workshop.write("orders", {"at": NOON_MS}, {"product": "tea"}, {"at": None})
    assert workshop.run_once(app) == 0
    (report,) = workshop.recorder.reports
    assert (report.job, report.rows, report.untimed, report.dead) == (job.name, 3, 2, 0)
