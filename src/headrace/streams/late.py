"""Late events: those that come for a window whose result was given already.

Spark drops them, and says of each batch how many it dropped. Only when there were some is the batch read a
second time, through the same function of the job up to its windows; the rows whose window had ended by the
watermark that Spark dropped them by are written to the late topic, in the transaction of the batch. Each
event of a window is either in its result or among the late ones, and a job whose events are in time pays
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headrace.engine.state.operators import state_figures
from headrace.errors import Misuse
from headrace.streams.columns import quoted
from headrace.streams.plan import stateful_operators
from headrace.streams.query_builder import current_builder
from headrace.streams.replay import InputReplay
from headrace.streams.topic import Topic
from headrace.streams.window_assignment import END, START, memberships

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from headrace.spark.transactional_batch import Batch
    from headrace.streams.job import Job
    from headrace.streams.query_builder import QueryBuilder
    from headrace.streams.rows import Rows
    from headrace.streams.windows import Window

DROPPED: Final = "numRowsDroppedByWatermark"
"""Spark's name for the number of rows, or of sums of rows, that an operator dropped as late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowInput:
    """A window that a job's function made, and the rows that go into it."""

    rows: Rows
    window: Window
    can_be_late: bool


def note_window(rows: Rows, window: Window) -> None:
    """Note a window of the job that is being built, if it wants something done with late rows."""
    plan = current_builder("a window").plan
    if not plan.notes_windows:
        return
    # What an operator that keeps state hands on is never late: Spark holds the watermark back for it.
    can_be_late = not rows.frame.isStreaming or not keeps_state(rows.frame)
    plan.windows.append(WindowInput(rows=rows, window=window, can_be_late=can_be_late))
    if not can_be_late and plan.allowed_lateness_ms:
        raise Misuse(
            "allowed_lateness= is for windows right behind a stream: what a join, another window or "
            "deduplicate() gives is never late. Write the result of that step into a topic, and let a job of "
            "its own put it into windows."
        )


def keeps_state(frame: DataFrame) -> bool:
    """Whether a step before these rows keeps state: one of Spark's, or a stage of ours."""
    from headrace.spark.keyed_stage import SLOT

    analysed: Any = frame._jdf.queryExecution().analyzed()
    return bool(stateful_operators(frame)) or SLOT in str(analysed.toString())


class LateRows:
    """The late rows of one run of a job."""

    def __init__(self, job: Job, builder: QueryBuilder, dropped: Callable[[], int]) -> None:
        self._job = job
        self._builder = builder
        self._dropped = dropped

    def of_batch(self, batch: Batch) -> DataFrame | None:
        """The records to write for a batch that was computed just now; None if all of it was in time."""
        if not self._dropped() and not left_out(self._builder.state, batch):
            return None
        replay = InputReplay(self._builder, batch.start, batch.end)
        with replay.active():
            self._job.function()
        met = zip(self._builder.plan.windows, replay.plan.windows, strict=True)
        parts = [self._records(again, batch.late_ms) for first, again in met if first.can_be_late]
        return reduce(lambda one, other: one.unionByName(other), parts) if parts else None

    def _records(self, met: WindowInput, late_ms: int) -> DataFrame:
        """The rows that missed a window, once for each one missed, with its window_start and window_end."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        missed = memberships(met.rows, met.window).filter(F.col(END) <= F.timestamp_millis(F.lit(late_ms)))
        others = [name for name in missed.columns if name not in (START, END)]
        assert self._job.late_topic is not None
        topic = Topic(name=self._job.late_topic)
        return topic.records(missed.select(START, END, *map(quoted, others))).withColumn(
            "topic", F.lit(topic.name)
        )


def left_out(state: str, batch: Batch) -> int:
    """How many rows the stages of a job left out of a batch as late."""
    try:
        return state_figures(state, batch.id).late
    except Misuse:
        return 0  # the state is not in a folder: there are no stages


def dropped_rows(execution: Any) -> int:
    """How many rows, or sums of rows, Spark dropped as late in the execution of a batch, a Java object."""
    return sum(_dropped(node) for node in _nodes(execution.executedPlan()))


def _dropped(node: Any) -> int:
    metric = node.metrics().get(DROPPED)
    return int(metric.get().value()) if metric.isDefined() else 0


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for position in range(children.size()):
        yield from _nodes(children.apply(position))
