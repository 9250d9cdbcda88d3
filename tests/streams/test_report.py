"""Figures of a job, from the progress that Spark reports."""

import io
import json
from typing import Any

from rich.console import Console

from headrace.streams.display import Board, JsonLines, Lines, sentence, table
from headrace.streams.report import JobMetrics, Report
from headrace.streams.supervisor import JobEvent, State


def progress(**changes: Any) -> dict[str, Any]:
    return {
        "batchId": 3,
        "numInputRows": 100,
        "durationMs": {"triggerExecution": 180},
        "eventTime": {"watermark": "2026-01-01T00:01:00.000Z"},
        "stateOperators": [{"numRowsTotal": 40, "numRowsDroppedByWatermark": 2}],
        "sources": [
            {
                "endOffset": '{"orders": {"0": 10, "1": 5}}',
                "latestOffset": '{"orders": {"0": 14, "1": 5, "2": 3}}',
            }
        ],
        "observedMetrics": {"headrace.dead.orders": {"rows": 100, "dead": 1}, "mine": {"dead": 9}},
        **changes,
    }


def test_batches_are_added_up() -> None:
    metrics = JobMetrics()
    metrics.add(progress(), now_s=1.0)
    metrics.add(progress(), now_s=2.0)
    assert (metrics.batches, metrics.rows, metrics.late, metrics.dead) == (2, 200, 4, 2)
    assert (metrics.lag, metrics.batch_ms, metrics.state_rows) == (7, 180, 40)
    assert metrics.rows_per_second(now_s=3.0) == 40
    assert metrics.rows_per_second(now_s=30.0) == 0


def test_a_long_batch_has_the_rate_at_which_it_read_its_rows() -> None:
    metrics = JobMetrics()
    metrics.add(progress(numInputRows=4000, durationMs={"triggerExecution": 20_000}), now_s=20.0)
    assert metrics.rows_per_second(now_s=20.0) == 200
    assert metrics.rows_per_second(now_s=40.0) == 100
    assert metrics.rows_per_second(now_s=41.0) == 0


def test_a_job_that_is_done_has_the_rate_of_its_whole_run() -> None:
    metrics = JobMetrics()
    for end_s in (10.0, 20.0):
        metrics.add(progress(durationMs={"triggerExecution": 10_000}), now_s=end_s)
    metrics.add(
        progress(numInputRows=0, observedMetrics={}, durationMs={"triggerExecution": 100}), now_s=20.1
    )
    rates = {
        state: metrics.report(job="x", into="", state=state, reason="", now_s=60.0).rows_per_second
        for state in ("running", "finished")
    }
    assert rates == {"running": 0.0, "finished": 10.0}


def test_what_spark_does_not_report_stays_as_it_was() -> None:
    metrics = JobMetrics()
    metrics.add(progress(), now_s=1.0)
    metrics.add(
        {"batchId": 4, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "sources": [{}]}, now_s=2.0
    )
    assert (metrics.lag, metrics.watermark, metrics.batch_ms) == (7, "2026-01-01T00:01:00.000Z", 180)


def report(**changes: Any) -> Report:
    return Report(job="revenue", into="revenue_by_minute", state="running", batches=2, rows=1200, **changes)


def test_the_table_has_a_line_for_each_job() -> None:
    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(
        table([report(watermark="2026-01-01T00:01:00.000Z", dead=3), Report(job="x", state="failed")])
    )
    assert "revenue" in out.getvalue()
    assert "01-01 00:01:00" in out.getvalue()
    assert "x (failed)" in out.getvalue()


def test_lines_are_printed_when_something_happened() -> None:
    out = io.StringIO()
    with Lines(out, every_s=0) as lines:
        lines.tell(JobEvent(job="revenue", state=State.WAITING, text="the disk is full.", wait_s=2))
        lines.show([report(lag=5, dead=3)])
        lines.show([report(lag=5, dead=3)])
    assert out.getvalue().splitlines() == [
        "job revenue failed: the disk is full. It is started again in 2 s.",
        "job revenue: 1,200 rows in 2 batches (0 rows/s), lag 5, 3 dead",
    ]


def test_what_holds_a_job_up_is_said_once_and_when_it_goes_on() -> None:
    out = io.StringIO()
    with Lines(out, every_s=60) as lines:
        for reason in ("postgres revenue: connection refused; next try in 4 s", "", ""):
            metrics = JobMetrics(held_up=reason)
            line = metrics.report(job="revenue", into="revenue", state="running", reason="", now_s=0.0)
            lines.show([line])
            lines.show([line])
    assert out.getvalue().splitlines() == [
        "job revenue waits for postgres revenue: connection refused; next try in 4 s",
        "job revenue goes on",
    ]


def test_the_live_table_says_below_its_rows_what_holds_a_job_up() -> None:
    out = io.StringIO()
    with Board(Console(file=out, width=160, force_terminal=True)) as board:
        board.show([report(), Report(job="sales", state="held up", reason="postgres sales: it is away")])
    assert "sales (held up)" in out.getvalue()
    assert "sales waits for postgres sales: it is away" in out.getvalue()


def test_json_has_a_document_in_each_line() -> None:
    out = io.StringIO()
    with JsonLines(out) as lines:
        lines.say("hello")
        lines.tell(JobEvent(job="revenue", state=State.FAILED, text="why"))
        lines.show([report()])
    documents = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [document["event"] for document in documents] == ["says", "news", "reports", "reports"]
    assert documents[1]["state"] == "failed"
    assert documents[2]["jobs"][0]["rows"] == 1200


def test_a_job_that_is_given_up_is_said_to_be() -> None:
    news = JobEvent(job="revenue", state=State.FAILED, text="another driver runs it")
    assert sentence(news) == "job revenue failed and is not started again: another driver runs it"
