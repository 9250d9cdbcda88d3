"""The planner: one pass from the logical plan of a job to the query that Spark runs.

It knows the whole job before the first source is made:

- A source whose rows go into one window and nowhere else computes the partial aggregates of the window
  (`pushed_down`). Neither state nor results depend on it.
- The rows of a join may be behind the watermark, by as much as its two sides may be apart. Our own operators
  know that. Stateful operators of Spark's drop such rows as late, so where one follows a join, the watermark
  of the job is held back by that much (`held_back_ms`). Where another one is in front of the join, no single
  watermark is right for both, and the job is refused.
- A window, a join or another operator whose results change emits retractions only where something behind it
  has to know them: an operator that keeps them, or an output that deletes rows (`weighs`).
- Operators keep their state by the number of the task. A union or a coalesce behind one changes numbers, so
  there the rows are shuffled once more (`is_shuffled`).
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.columns.changelog import WEIGHT
from headrace.engine.callers import PLACE
from headrace.errors import Misuse
from headrace.spark.internals import check_weights, steps_of, substitute, substitute_weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame

    from headrace.engine.batch_hooks import BatchHooks
    from headrace.engine.logical import LogicalNode, LogicalPlan
    from headrace.spark.arrow_step import ArrowStep
    from headrace.spark.internals import SparkStep

Starts = dict[str, dict[str, int]]
"""Offsets by topic and partition, as Spark writes them in JSON."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRows:
    """Rows in a query: a DataFrame of Spark's, and the function in Python that made them last, if any."""

    frame: DataFrame
    step: ArrowStep | None = None
    """What follows at once can be done by the same tasks."""

    @staticmethod
    def of(step: ArrowStep) -> PlannedRows:
        """The rows of a step in Python."""
        return PlannedRows(frame=step.rows, step=step)


class Planner:
    """Plans the rows of one job."""

    def __init__(
        self,
        plan: LogicalPlan,
        rows: DataFrame,
        *,
        state: str = "",
        starts: Starts | None = None,
        hooks: BatchHooks | None = None,
    ) -> None:
        self.plan = plan
        self.spark = plan.spark
        self.bootstrap = plan.bootstrap
        self.state = state
        """The folder of the operators' state: it belongs to the checkpoint."""
        self.starts = starts or {}
        self.hooks = hooks or plan.hooks
        self.rows = rows
        """The rows of the job, over placeholders."""
        self.nodes = plan.reachable(rows)
        """The nodes of the query, in the order of the job's function."""
        frames = (rows, *(frame for node in self.nodes for frame in node.inputs))
        self._steps = [steps_of(frame) for frame in frames]
        self._weighed = self._weighed_nodes(frames)
        self._uses = Counter(step.node for steps in self._steps for step in steps.walk())
        self._renumbered = {node.number for steps in self._steps for node in self._renumbered_in(steps)}
        self.held_back_ms = max(map(self._held_back_ms_in, self._steps), default=0)
        """By how much the watermark of the job is behind what its streams say."""
        self._planned: dict[int, PlannedRows] = {}
        self._once: dict[str, Any] = {}

    def planned_rows(self) -> PlannedRows:
        """The rows of the job."""
        for node in self.nodes:
            if node.rows is self.rows:
                planned = self.planned(node)
                return PlannedRows(frame=inserted(planned.frame)) if self._has_weights(planned) else planned
        return PlannedRows(frame=self.frame(self.rows))

    def frame(self, frame: DataFrame) -> DataFrame:
        """A DataFrame over placeholders with rows in their place; of a changelog those that are inserted."""
        return substitute(frame, lambda number: inserted(self.planned(self.plan.nodes[number]).frame))

    def weighted_frame(self, frame: DataFrame) -> DataFrame:
        """The same with all rows of changelogs, and their weights as the last column."""
        return substitute_weighted(frame, lambda number: self.planned(self.plan.nodes[number]).frame, WEIGHT)

    @staticmethod
    def _has_weights(planned: PlannedRows) -> bool:
        return WEIGHT in planned.frame.columns

    def weighs(self, node: LogicalNode) -> bool:
        """Whether the rows of a node need weights: it has to emit the rows that it retracts."""
        return node.number in self._weighed

    def _weighed_nodes(self, frames: Sequence[DataFrame]) -> set[int]:
        """The changelogs that an operator reads whose results depend on retractions."""
        if not any(node.is_changelog for node in self.nodes):
            return set()
        for frame in frames:
            check_weights(frame, lambda number: self.plan.nodes[number].is_changelog)
        found: set[int] = set()
        for node in reversed(self.nodes):
            if node.reads_weights or node.number in found:
                read = [each for frame in node.inputs for each in self.plan.inputs_of(steps_of(frame))]
                found |= {each.number for each in read if each.is_changelog}
        return found

    def planned(self, node: LogicalNode) -> PlannedRows:
        """The rows of a node; each is planned once."""
        if node.number not in self._planned:
            with _naming(node):
                self._planned[node.number] = self._plan(node)
        return self._planned[node.number]

    def _plan(self, node: LogicalNode) -> PlannedRows:
        return node.plan(self)

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time that something of this name is asked for."""
        if name not in self._once:
            self._once[name] = make()
        return cast("Made", self._once[name])

    def folder_of(self, node: LogicalNode) -> str:
        """The folder of a node's state."""
        return f"{self.state}/{node.name}"

    def behind_ms(self, node: LogicalNode, behind_ms: int) -> int:
        """How far the rows of a node may be behind the watermark of the job, which may be held back.

        What an operator of Spark's gives comes when the watermark that is held back has passed it.
        """
        return behind_ms if self._follows_spark(node) else behind_ms - self.held_back_ms

    def is_shuffled(self, node: LogicalNode) -> bool:
        """Whether the rows of a node are shuffled once more: behind it, tasks have other numbers."""
        return node.number in self._renumbered

    def is_read_once(self, source: LogicalNode) -> bool:
        """Whether the rows of a source go into one step, and nowhere else."""
        return self._uses[source.number] == 1

    def _renumbered_in(self, step: SparkStep) -> Iterator[LogicalNode]:
        for each in step.walk():
            if each.renumbers:
                for side in each.inputs:
                    yield from self._open_nodes(side)

    def _open_nodes(self, step: SparkStep) -> Iterator[LogicalNode]:
        """The operators whose task numbers are those of a step: no shuffle is in between."""
        if step.shuffles:
            return
        for each in step.inputs:
            yield from self._open_nodes(each)
        if step.node is not None:
            yield from self._open_behind(self.plan.nodes[step.node])

    def _open_behind(self, node: LogicalNode) -> Iterator[LogicalNode]:
        if node.is_open:
            yield node
        elif not node.shuffles:
            for frame in node.inputs:
                yield from self._open_nodes(steps_of(frame))

    def _held_back_ms_in(self, steps: SparkStep) -> int:
        held_back_ms = 0
        for step in steps.walk():
            for node in self.plan.inputs_of(step) if step.keeps_state else ():
                if node.behind_ms and self._follows_spark(node):
                    raise _between_two(node)
                held_back_ms = max(held_back_ms, node.behind_ms)
        return held_back_ms

    def _follows_spark(self, node: LogicalNode) -> bool:
        """Whether rows of a node come from a stateful operator of Spark's."""
        return any(self.plan.spark_operators(frame) for frame in node.inputs)


def inserted(frame: DataFrame) -> DataFrame:
    """The rows of a changelog that are inserted, without weights; other rows as they are."""
    if WEIGHT not in frame.columns:
        return frame
    return frame.filter(f"{WEIGHT} > 0").drop(WEIGHT)


@contextmanager
def _naming(node: LogicalNode) -> Iterator[None]:
    """A block whose errors name the line of the user's code that made a node."""
    try:
        yield
    except Exception as error:
        if node.place and not hasattr(error, PLACE):
            setattr(error, PLACE, node.place)
        raise


def _between_two(node: LogicalNode) -> Misuse:
    return Misuse(
        f"{node.name} ({node.place}) is between two stateful operators of Spark's own, and its rows would be "
        "late for the second one: use .window(…).agg(…) or deduplicate() for one of the two, or write the "
        "rows of the first one into a topic that another job reads."
    )
