"""The metrics of `headrace run`: jobs, with the meaning of Flink's and Spark's metrics, and captures."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Final

from headrace.capture.metrics import METRICS as CAPTURE_METRICS
from headrace.capture.metrics import add_samples
from headrace.metrics.families import Kind, Metric, Summary
from headrace.streams.supervisor import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.capture.process import CaptureProcess
    from headrace.metrics.families import Scrape
    from headrace.streams.job_run import JobRun
    from headrace.streams.rebuild import Rebuild
    from headrace.streams.report import JobMetrics
    from headrace.streams.supervisor import SupervisedJob, Supervisor

_JOB: Final = ("app", "job_name")

RUNNING = Metric(
    name="headrace_job_running",
    kind=Kind.GAUGE,
    doc="1 while the job runs, 0 while it waits for a restart, has finished or has failed.",
    labels=_JOB,
)
FAILED = Metric(
    name="headrace_job_failed",
    kind=Kind.GAUGE,
    doc="1 when the job has failed for good and is not restarted.",
    labels=_JOB,
)
RESTARTS = Metric(
    name="headrace_job_restarts_total",
    kind=Kind.COUNTER,
    doc="Restarts after failures (Flink: `numRestarts`).",
    labels=_JOB,
)
ROWS_IN = Metric(
    name="headrace_job_records_in_total",
    kind=Kind.COUNTER,
    doc="Records read from streams and tables (Flink: `numRecordsIn`).",
    labels=_JOB,
)
ROWS_OUT = Metric(
    name="headrace_job_records_out_total",
    kind=Kind.COUNTER,
    doc="Records committed to topics, views and other outputs (Flink: `numRecordsOut`).",
    labels=(*_JOB, "topic"),
)
LATE = Metric(
    name="headrace_job_late_records_total",
    kind=Kind.COUNTER,
    doc="Records behind the watermark (Flink: `numLateRecordsDropped`).",
    labels=_JOB,
)
DEAD = Metric(
    name="headrace_job_dead_records_total",
    kind=Kind.COUNTER,
    doc="Records in the dead-letter topic: not parsed, failed in the job's code, or refused by a sink.",
    labels=_JOB,
)
UNTIMED = Metric(
    name="headrace_job_untimed_records_total",
    kind=Kind.COUNTER,
    doc="Records without an event time, which no window or join has.",
    labels=_JOB,
)
LAG = Metric(
    name="headrace_job_lag_records",
    kind=Kind.GAUGE,
    doc="Records in the input topics after the end of the last batch (Flink: `records-lag-max`).",
    labels=_JOB,
)
BATCHES = Metric(
    name="headrace_job_batch_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time of a micro-batch (Spark: `triggerExecution`).",
    labels=_JOB,
)
PHASES = Metric(
    name="headrace_job_batch_phase_seconds",
    kind=Kind.SUMMARY,
    doc="Time of the phases of micro-batches, by Spark's names: `latestOffset`, `queryPlanning`, `getBatch`, "
    "`addBatch`, `walCommit`, `commitOffsets` and `triggerExecution`, which is all of them.",
    labels=(*_JOB, "phase"),
)
WATERMARK = Metric(
    name="headrace_job_watermark_timestamp_seconds",
    kind=Kind.GAUGE,
    doc="The watermark, in seconds since 1970 (Flink: `currentOutputWatermark`).",
    labels=_JOB,
)
WATERMARK_DELAY = Metric(
    name="headrace_job_watermark_delay_seconds",
    kind=Kind.GAUGE,
    doc="How far the watermark is behind the clock.",
    labels=_JOB,
)
STATE_ROWS = Metric(
    name="headrace_job_state_rows",
    kind=Kind.GAUGE,
    doc="Rows in the state of all operators (Spark: `numRowsTotal`).",
    labels=_JOB,
)
STATE_BYTES = Metric(
    name="headrace_job_state_bytes",
    kind=Kind.GAUGE,
    doc="Size of the state of all operators (Spark: `memoryUsedBytes`).",
    labels=_JOB,
)

METRICS: Final = tuple(
    value for name, value in list(globals().items()) if isinstance(value, Metric) and name[0] != "_"
)
"""Every metric of a job, in the order of the documentation."""


class RunMetricsSource:
    """The page of a run: jobs appear when the supervisor has them."""

    def __init__(
        self,
        app: str,
        supervisor: Supervisor,
        runs: Sequence[JobRun | Rebuild],
        captures: Sequence[CaptureProcess],
    ) -> None:
        self._app = app
        self._supervisor = supervisor
        self._runs = runs
        self._captures = captures

    def scrape(self, scrape: Scrape) -> None:
        """Add all samples."""
        scrape.announce(*METRICS)
        charges = dict(self._supervisor.charges)
        for run in self._runs:
            self._add_job(scrape, run.name, run.metrics, charges.get(run.name))
        if self._captures:
            scrape.announce(*CAPTURE_METRICS)
        for capture in self._captures:
            add_samples(scrape, capture.metrics)

    def faults(self) -> list[str]:
        """Jobs that have failed for good: only a new run goes on with them."""
        charges = list(self._supervisor.charges.items())
        return [
            f"{name} has failed: {charge.reason}" for name, charge in charges if charge.state is State.FAILED
        ]

    def pending(self) -> list[str]:
        """Jobs that do not run yet, or not now."""
        charges = dict(self._supervisor.charges)
        missing = [run.name for run in self._runs if run.name not in charges]
        waiting = [name for name, charge in charges.items() if charge.state is State.WAITING]
        return [f"{name} is not running" for name in (*missing, *waiting)]

    def _add_job(self, scrape: Scrape, job: str, metrics: JobMetrics, charge: SupervisedJob | None) -> None:
        where = (self._app, job)
        scrape.add(RUNNING, charge is not None and charge.state is State.RUNNING, *where)
        scrape.add(FAILED, charge is not None and charge.state is State.FAILED, *where)
        scrape.add(RESTARTS, 0 if charge is None else max(charge.starts - 1, 0), *where)
        scrape.add(ROWS_IN, metrics.rows, *where)
        for topic, records in list(metrics.rows_out.items()):
            scrape.add(ROWS_OUT, records, *where, topic)
        scrape.add(LATE, metrics.late + metrics.left_out, *where)
        scrape.add(DEAD, metrics.dead + metrics.refused + metrics.failed, *where)
        scrape.add(UNTIMED, metrics.untimed, *where)
        scrape.add(BATCHES, metrics.batch_time, *where)
        for phase, seconds in list(metrics.phase_s.items()):
            scrape.add(PHASES, Summary(metrics.batches, seconds), *where, phase)
        for metric, value in (
            (LAG, metrics.lag),
            (STATE_ROWS, metrics.state_rows),
            (STATE_BYTES, metrics.state_bytes),
        ):
            if value is not None:
                scrape.add(metric, value, *where)
        if metrics.watermark is not None:
            watermark_s = datetime.fromisoformat(metrics.watermark).timestamp()
            scrape.add(WATERMARK, watermark_s, *where)
            scrape.add(WATERMARK_DELAY, time.time() - watermark_s, *where)
