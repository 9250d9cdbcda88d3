"""How a job is doing, added up from what Spark reports after each micro-batch."""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.metrics.families import Histogram
from headrace.streams.source import DEAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.state.operators import StateFigures

RATE_WINDOW_S: Final = 5.0
BATCH_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets of batch times."""
HELD_UP: Final = "held up"
"""The state of a job that runs, but waits for one of its targets."""
BEGINNING: Final = "1970-01-01T00:00:00.000Z"
"""What Spark reports as the watermark as long as there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One line of the table: a job at this moment."""

    job: str
    state: str
    into: str = ""
    batches: int = 0
    rows: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    watermark: str | None = None
    batch_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    state_ms: float | None = None
    """How long they read and wrote state in the last batch."""
    late: int = 0
    dead: int = 0
    untimed: int = 0
    """Rows without an event time: no window, join or other step that goes by time has them."""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class JobMetrics:
    """The sums of one job over this run of the program, over restarts of the job too."""

    batches: int = 0
    rows: int = 0
    late: int = 0
    left_out: int = 0
    """Late rows that Spark does not know of: those of our own stages. Another thread counts them."""
    dead: int = 0
    untimed: int = 0
    refused: int = 0
    """Rows that a target did not take: they are dead letters too. Another thread counts them."""
    failed: int = 0
    """Results that the job's own code failed on: they are dead letters too. Another thread counts them."""
    held_up: str = ""
    """Which target the job waits for, and why. Another thread says so."""
    lag: int | None = None
    watermark: str | None = None
    batch_ms: int | None = None
    spark_state_rows: int | None = None
    spark_state_bytes: int | None = None
    """The state of Spark's own operators."""
    operators: StateFigures | None = None
    """The state of Headrace's operators. Another thread sets it."""
    rows_out: Counter[str] = field(default_factory=Counter)
    """Committed records, by topic, and rows, by the name of the sink. Another thread counts them."""
    batch_time: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS_S))
    batch_phases_ms: dict[str, int] = field(default_factory=dict)
    """How long the phases of the last batch took, by Spark's names."""
    phase_s: dict[str, float] = field(default_factory=dict)
    """How long the phases of batches took all together, by Spark's names."""
    busy_s: float = 0.0
    """How long batches took, all together."""
    _recent: deque[_Batch] = field(default_factory=deque)

    def add(self, progress: Mapping[str, Any], *, now_s: float, rows: int | None = None) -> None:
        """Take in the progress of one micro-batch, as Spark reports it in JSON.

        `rows` are the records that it read, where Spark does not know them all.
        """
        rows = rows_of(progress) if rows is None else rows
        self.batches += 1
        self.rows += rows
        self.batch_ms = (progress.get("durationMs") or {}).get("triggerExecution", self.batch_ms)
        duration_s = (self.batch_ms or 0) / 1000
        self.batch_time.observe(duration_s)
        self.batch_phases_ms = dict(progress.get("durationMs") or {})
        for phase, duration_ms in self.batch_phases_ms.items():
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + duration_ms / 1000
        self.busy_s += duration_s
        self._recent.append(_Batch(now_s - duration_s, now_s, rows))
        self.lag = _lag(progress.get("sources") or (), self.lag)
        watermark = (progress.get("eventTime") or {}).get("watermark")
        self.watermark = self.watermark if watermark in (None, BEGINNING) else watermark
        operators = progress.get("stateOperators") or ()
        if operators:
            self.spark_state_rows = sum(int(operator.get("numRowsTotal", 0)) for operator in operators)
            self.spark_state_bytes = sum(int(operator.get("memoryUsedBytes", 0)) for operator in operators)
        self.late += sum(int(operator.get("numRowsDroppedByWatermark", 0)) for operator in operators)
        metrics = progress.get("observedMetrics") or {}
        self.dead += _observed(metrics, "dead")
        self.untimed += _observed(metrics, "untimed")

    def rows_per_second(self, *, now_s: float) -> float:
        """The rate of the last seconds; of a batch that took longer, the rate at which it read its rows."""
        while self._recent and self._recent[0].counts_until_s < now_s:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        span_s = max(RATE_WINDOW_S, now_s - self._recent[0].start_s)
        return sum(batch.rows for batch in self._recent) / span_s

    @property
    def average_rows_per_second(self) -> float:
        """The rate over the whole run, while batches were under way."""
        return self.rows / self.busy_s if self.busy_s else 0.0

    def _rate(self, state: str, now_s: float) -> float:
        is_over = state in ("finished", "failed")
        return self.average_rows_per_second if is_over else self.rows_per_second(now_s=now_s)

    @property
    def state_rows(self) -> int | None:
        """The rows that all operators keep; None if none does."""
        return _total(self.spark_state_rows, None if self.operators is None else self.operators.rows)

    @property
    def state_bytes(self) -> int | None:
        """The size of what all operators keep; None if none does."""
        return _total(self.spark_state_bytes, None if self.operators is None else self.operators.byte_size)

    def report(self, *, job: str, into: str, state: str, reason: str, now_s: float) -> Report:
        """The line of the table."""
        return Report(
            job=job,
            into=into,
            state=HELD_UP if self.held_up and not reason else state,
            reason=reason or self.held_up,
            batches=self.batches,
            rows=self.rows,
            rows_per_second=round(self._rate(state, now_s), 1),
            lag=self.lag,
            watermark=self.watermark,
            batch_ms=self.batch_ms,
            state_rows=self.state_rows,
            state_bytes=self.state_bytes,
            state_ms=None if self.operators is None else self.operators.state_ms,
            late=self.late + self.left_out,
            dead=self.dead + self.refused + self.failed,
            untimed=self.untimed,
        )


class _Batch(NamedTuple):
    """A micro-batch among the recent ones."""

    start_s: float
    end_s: float
    rows: int

    @property
    def counts_until_s(self) -> float:
        """As long as the next one may take, if it is like this one."""
        return self.end_s + max(RATE_WINDOW_S, self.end_s - self.start_s)


def _total(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def rows_of(progress: Mapping[str, Any]) -> int:
    """How many records a micro-batch had.

    Spark counts what a source hands over; one that hands over sums says itself how many records they are.
    """
    metrics = progress.get("observedMetrics") or {}
    counted = [row for name, row in metrics.items() if name.startswith(DEAD)]
    summed = sum(int(row.get("rows") or 0) for row in counted)
    return max(summed, int(progress.get("numInputRows") or 0))


def _lag(sources: Any, before: int | None) -> int | None:
    """The records that wait in the log behind the end of a batch; unknown until a source says."""
    lags = [
        _behind(_offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))) for source in sources
    ]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else before


def _behind(end: dict[str, Any] | None, latest: dict[str, Any] | None) -> int | None:
    if not end or not latest:
        return None
    return sum(
        max(0, int(offset) - int(end.get(topic, {}).get(number, 0)))
        for topic, partitions in latest.items()
        for number, offset in partitions.items()
    )


def _offsets(value: Any) -> dict[str, Any] | None:
    """Offsets of a source, which Spark reports as JSON or as JSON in a string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _observed(metrics: Mapping[str, Any], count: str) -> int:
    """The sum of one of the counts that were observed of each topic."""
    return sum(int(row.get(count) or 0) for name, row in metrics.items() if name.startswith(DEAD))
