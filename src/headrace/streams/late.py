"""Late events: those that come for a window whose result was given already.

Operators drop them, and count how many there were in a batch. Only when there were some is the batch read a
second time, through the steps of the job up to its windows; the rows whose window had ended by the watermark
that they were dropped by are written to the late topic, in the transaction of the batch. Each event of a
window is either in its result or among the late ones, and a job whose events are in time pays nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from headrace.engine.columns import quoted
from headrace.engine.replay import InputReplay
from headrace.errors import Misuse
from headrace.state.operators import operator_locations, state_figures
from headrace.streams.sliding import SlidingAggregation
from headrace.streams.source import Source
from headrace.streams.topic import Topic
from headrace.streams.window_assignment import END, START, memberships
from headrace.streams.window_operator import WindowAggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from headrace.engine.logical import LogicalNode
    from headrace.engine.planner import Planner
    from headrace.spark.checkpoint import Offsets
    from headrace.spark.transactional_batch import Batch
    from headrace.state.operators import StateFigures
    from headrace.streams.job import Job


def windows_of(nodes: Sequence[LogicalNode]) -> list[WindowAggregation | SlidingAggregation]:
    """The windows among operators."""
    return [node for node in nodes if isinstance(node, WindowAggregation | SlidingAggregation)]


class LateRows:
    """The late rows of one run of a job."""

    def __init__(self, job: Job, planner: Planner, dropped: Callable[[], int]) -> None:
        self._job = job
        self._planner = planner
        self._dropped = dropped

    def of_batch(self, batch: Batch) -> DataFrame | None:
        """The records to write for a batch that was computed just now; None if all of it was in time."""
        if not self._dropped() and not self._left_out(batch):
            return None
        replay = replay_of(self._planner, batch.start, batch.end)
        windows = [node for node in windows_of(self._planner.nodes) if node.can_be_late]
        parts = [self._records(node, replay, batch.late_ms) for node in windows]
        return reduce(lambda one, other: one.unionByName(other), parts) if parts else None

    def _left_out(self, batch: Batch) -> int:
        figures = batch_figures(self._planner.state, batch)
        return 0 if figures is None else figures.late

    def _records(
        self, node: WindowAggregation | SlidingAggregation, replay: Planner, late_ms: int
    ) -> DataFrame:
        """The rows that missed a window, once for each one missed, with its window_start and window_end."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        by_ms = late_ms - self._planner.behind_ms(node, node.behind_ms)
        frame = memberships(node.of, node.window)
        missed = replay.frame(frame).filter(F.col(END) <= F.timestamp_millis(F.lit(by_ms)))
        others = [name for name in missed.columns if name not in (START, END)]
        assert self._job.late_topic is not None
        topic = Topic(name=self._job.late_topic)
        return topic.records(missed.select(START, END, *map(quoted, others))).withColumn(
            "topic", F.lit(topic.name)
        )


def replay_of(planner: Planner, start: Offsets, end: Offsets) -> InputReplay:
    """The job over the records between the start and the end of a batch."""

    def read(node: LogicalNode) -> DataFrame | None:
        return node.replayed(planner, start, end) if isinstance(node, Source) else None

    return InputReplay(planner, read)


def batch_figures(state: str, batch: Batch) -> StateFigures | None:
    """What the operators of a job kept and left out in a batch; None if there are none."""
    try:
        return state_figures(state, batch.id) if operator_locations(state) else None
    except Misuse:
        return None  # the state is not in a folder: there are no operators
