"""The plan of a job over one micro-batch, with plain DataFrames instead of its streams.

```text
source records ──▶ user code ──▶ stateful operator ──▶ user code ──▶ output
└──────────── InputReplay ──────────────┘         └── ResultReplay ──┘
```

Neither computes a stateful operator: it depends on the batches before. `InputReplay` reads a batch's records
again, up to the operators. `ResultReplay` is given the rows that one operator has computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.engine.batch_hooks import BatchHooks
from headrace.engine.planner import PlannedRows, Planner
from headrace.spark.internals import steps_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.engine.logical import LogicalNode


class InputReplay(Planner):
    """The job over the records of one batch, up to the operators that keep state."""

    def __init__(self, planner: Planner, read: Callable[[LogicalNode], DataFrame | None]) -> None:
        super().__init__(planner.plan, planner.rows, state=planner.state, hooks=BatchHooks())
        self._read = read
        """The records of a source; None for a node that is no source."""

    def evaluated(self) -> list[DataFrame]:
        """All that is evaluated for the records: what goes into operators, and the rows of the job."""
        stateful = [node for node in self.nodes if node.keeps_state]
        frames = [self.frame(frame) for node in stateful for frame in node.evaluated()]
        return [*frames, self.planned_rows().frame]

    def _plan(self, node: LogicalNode) -> PlannedRows:
        records = self._read(node)
        if records is not None:
            return PlannedRows(frame=records)
        if node.keeps_state:
            return PlannedRows(frame=self.spark.createDataFrame([], node.rows.schema))
        return super()._plan(node)


class ResultReplay(Planner):
    """The job over rows that one of its operators has computed."""

    def __init__(self, planner: Planner, operator: LogicalNode, results: DataFrame) -> None:
        super().__init__(planner.plan, planner.rows, state=planner.state, hooks=BatchHooks())
        self._operator = operator
        self._results = results

    def _plan(self, node: LogicalNode) -> PlannedRows:
        return PlannedRows(frame=self._results) if node is self._operator else super()._plan(node)


def last_operator(planner: Planner) -> LogicalNode | None:
    """The stateful operator from whose rows alone the job makes its own, by steps that keep no state.

    None where there are several, where the rows of a stream are used too, where an operator of Spark's keeps
    state behind it, or where nothing follows it.
    """
    found: set[int] = set()
    waiting = [planner.rows]
    while waiting:
        steps = steps_of(waiting.pop())
        if any(step.keeps_state for step in steps.walk()):
            return None
        for node in planner.plan.inputs_of(steps):
            if node.keeps_state or not node.inputs:
                found.add(node.number)
            else:
                waiting += node.inputs
    nodes = [planner.plan.nodes[number] for number in found]
    if len(nodes) != 1 or not nodes[0].keeps_state or nodes[0].rows is planner.rows:
        return None
    return nodes[0]
