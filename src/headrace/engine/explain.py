"""The plan of a job for people and programs: its operators, what they keep, and which parts are Spark's own.

```text
job shop.revenue: struct<…>
└─ Spark: Filter, Project
   └─ window-1  pipeline.py, line 12
      computes   revenue
      state      amount.sum by windows of 60 s every 60 s by product
      └─ source-1  pipeline.py, line 9
         topic        orders
         pushed down  partial aggregates of window-1
```
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.internals import steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from headrace.engine.planner import Planner
    from headrace.spark.internals import SparkStep

HIDDEN: Final = frozenset({"SubqueryAlias", "View", "WithCTE", "CTERelationDef", "CTERelationRef"})
"""Nodes of Spark's plans that compute nothing."""
PUSHED_DOWN: Final = "pushed down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The rows that go into an operator: from which operators, and through which steps of Spark's."""

    operators: tuple[str, ...]
    steps: tuple[str, ...]
    stateful: tuple[str, ...]
    """Those of the steps for which Spark keeps state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedOperator:
    """An operator of a job; Headrace executes it."""

    name: str
    kind: str
    place: str
    keeps_state: bool
    parameters: Mapping[str, str]
    inputs: tuple[Flow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedPlan:
    """What a job computes, from its sources to its rows."""

    job: str
    operators: tuple[ExplainedOperator, ...]
    """In the order of the job's function."""
    rows: Flow
    columns: str
    held_back_ms: int
    """By how much the watermark is behind what the streams say, for operators of Spark's behind joins."""

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON knows it."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The plan as a tree, from the rows of the job back to its sources."""
        yield f"job {self.job}: {self.columns}"
        if self.held_back_ms:
            yield f"the watermark is held back by {self.held_back_ms} ms, for Spark's operators behind joins"
        seen: set[str] = set()
        yield from self._flow(self.rows, "", seen)

    def _flow(self, flow: Flow, indent: str, seen: set[str]) -> Iterator[str]:
        if flow.steps:
            state = f" (Spark keeps state for {', '.join(flow.stateful)})" if flow.stateful else ""
            yield f"{indent}└─ Spark: {', '.join(flow.steps)}{state}"
            indent += "   "
        named = {operator.name: operator for operator in self.operators}
        for name in flow.operators:
            yield from self._operator(named[name], indent, seen)

    def _operator(self, operator: ExplainedOperator, indent: str, seen: set[str]) -> Iterator[str]:
        place = f"  {operator.place}" if operator.place else ""
        if operator.name in seen:
            yield f"{indent}└─ {operator.name}, see above"
            return
        seen.add(operator.name)
        yield f"{indent}└─ {operator.name}{place}"
        width = max(map(len, operator.parameters), default=0)
        for parameter, value in operator.parameters.items():
            yield f"{indent}   {parameter:<{width}}  {value}"
        for flow in operator.inputs:
            yield from self._flow(flow, f"{indent}   ", seen)


def explained(planner: Planner) -> ExplainedPlan:
    """The plan of a job; nothing is read, and no state is opened."""
    operators = []
    for node in planner.nodes:
        parameters = dict(node.details())
        reader = next((other for other in planner.nodes if other.reads_aggregates_of(planner, node)), None)
        if reader is not None:
            parameters[PUSHED_DOWN] = f"partial aggregates of {reader.name}"
        if node.is_changelog:
            parameters["results"] = "change, and are retracted" if planner.weighs(node) else "change"
        operators.append(
            ExplainedOperator(
                name=node.name,
                kind=node.kind,
                place=node.place,
                keeps_state=node.keeps_state,
                parameters=parameters,
                inputs=tuple(_flow(planner, frame) for frame in node.inputs),
            )
        )
    return ExplainedPlan(
        job=planner.plan.job,
        operators=tuple(operators),
        rows=_flow(planner, planner.rows),
        columns=planner.rows.schema.simpleString(),
        held_back_ms=planner.held_back_ms,
    )


def _flow(planner: Planner, frame: DataFrame) -> Flow:
    steps = steps_of(frame)
    names = [node.name for node in planner.plan.inputs_of(steps)]
    own = [step for step in steps.walk() if _is_shown(step)]
    return Flow(
        operators=tuple(dict.fromkeys(names)),
        steps=tuple(step.kind for step in reversed(own)),
        stateful=tuple(step.kind for step in reversed(own) if step.keeps_state),
    )


def _is_shown(step: SparkStep) -> bool:
    return step.node is None and step.kind not in HIDDEN
