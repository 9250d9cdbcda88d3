"""The logical plan of a job: the operators that its function has called, and the rows between them.

```text
 orders.filter ─▶ window ─▶ .df / transform / sql ─▶ join ─▶ rows of the job
 └ Source         └ Window  └ DataFrame over a      └ StreamJoin
                              placeholder
```

A job's function is called once. Each operator that it calls adds a node, and returns a DataFrame over a
*placeholder* of the node: a streaming relation that has the columns of the operator's rows, and no rows. All
that users do with such a DataFrame (filters, columns, SQL, aggregations of Spark's) is analyzed at once, and
mistakes are found in the line that makes them. Nothing is read, and no state is opened.

When the function has returned, the `Planner` knows the whole plan, and puts rows in the place of
placeholders.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast

from headrace.engine.batch_hooks import BatchHooks
from headrace.engine.callers import place_of_caller
from headrace.errors import Misuse
from headrace.spark.internals import placeholder, stateful_operators, steps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.engine.planner import PlannedRows, Planner
    from headrace.spark.internals import SparkOperator, SparkStep

LEGAL: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
"""What an operator can be called: its name is one of a folder."""
_current: ContextVar[LogicalPlan] = ContextVar("logical_plan")

Made = TypeVar("Made")
NodeType = TypeVar("NodeType", bound="LogicalNode")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogicalNode:
    """An operator of a job. Subclasses have its parameters, and know how it is planned."""

    kind: ClassVar[str]
    """What the operator is, in one word; its state is named by it."""
    keeps_state: ClassVar[bool] = False
    is_open: ClassVar[bool] = False
    """Whether the numbers of its tasks have to be those of the tasks behind it: it has files by number."""
    shuffles: ClassVar[bool] = False

    number: int
    name: str
    """Unique in the job: chosen by the user (`name=`), or the number among those of its kind: `window-1`."""
    place: str
    """The line of the user's code that made it: "pipeline.py, line 12"."""
    rows: DataFrame
    """The placeholder of its rows."""
    inputs: tuple[DataFrame, ...] = ()
    """The rows that go into it, over placeholders."""
    behind_ms: int = 0
    """How far its rows may be behind the watermark without being late."""

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows of the operator in a query."""
        raise NotImplementedError

    def evaluated(self) -> Sequence[DataFrame]:
        """All that is evaluated for each row in front of the state, over placeholders."""
        return self.inputs

    def details(self) -> Mapping[str, str]:
        """The parameters, for people."""
        return {}

    def reads_aggregates_of(self, planner: Planner, source: LogicalNode) -> bool:  # noqa: ARG002
        """Whether a source computes partial aggregates for this operator."""
        return False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that it reads."""
        return ()


class LogicalPlan:
    """The operators of one call of a job's function."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        job: str = "",
        allowed_lateness_ms: int = 0,
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.job = job
        """The job's full name."""
        self.allowed_lateness_ms = allowed_lateness_ms
        """For how long after its result late rows correct a window."""
        self.hooks = BatchHooks()
        self.nodes: list[LogicalNode] = []
        self._counts: Counter[str] = Counter()
        self._wanted_name: str | None = None
        self._once: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """A block in which operators add their nodes to this plan."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def add(self, node: type[NodeType], schema: StructType, **parameters: Any) -> NodeType:
        """A node of this type whose rows have the columns `schema`."""
        number = len(self.nodes)
        if "name" not in parameters:
            parameters["name"] = self._name_of(node.kind, is_source=not parameters.get("inputs"))
        made = node(
            number=number,
            place=place_of_caller(),
            rows=placeholder(self.spark, number, schema),
            **parameters,
        )
        self.nodes.append(made)
        return made

    def name_next(self, name: str) -> None:
        """Give this name to the next operator that is added; sources keep theirs."""
        if not LEGAL.fullmatch(name):
            raise Misuse(
                f"name={name!r} cannot be an operator's name: use up to 100 letters, digits, underscores, "
                "dots and hyphens, beginning with a letter."
            )
        if any(node.name == name for node in self.nodes):
            raise Misuse(f"two operators have the name {name!r}: give one of them another name=.")
        self._wanted_name = name

    def _name_of(self, kind: str, *, is_source: bool) -> str:
        name = self._wanted_name
        if name is None or is_source:
            return self.next_name(kind)
        self._wanted_name = None
        return name

    def next_name(self, kind: str) -> str:
        """A name for an operator of this kind; those that have a name of their own are not counted."""
        taken = {node.name for node in self.nodes}
        while True:
            self._counts[kind] += 1
            name = f"{kind}-{self._counts[kind]}"
            if name not in taken:
                return name

    def once(self, name: str, make: Callable[[], Made]) -> Made:
        """What `make` gives, made the first time that something of this name is asked for."""
        if name not in self._once:
            self._once[name] = make()
        return cast("Made", self._once[name])

    def inputs_of(self, step: SparkStep) -> list[LogicalNode]:
        """The nodes whose rows go into a step of Spark's, through such steps alone."""
        return [self.nodes[each.node] for each in step.walk() if each.node is not None]

    def reachable(self, *frames: DataFrame) -> list[LogicalNode]:
        """The nodes that rows come from, in the order of the job's function."""
        found: dict[int, LogicalNode] = {}
        waiting = list(frames)
        while waiting:
            for node in self.inputs_of(steps_of(waiting.pop())):
                if node.number not in found:
                    found[node.number] = node
                    waiting += node.inputs
        return [found[number] for number in sorted(found)]

    def spark_operators(self, frame: DataFrame) -> list[SparkOperator]:
        """The stateful operators of Spark's own that rows come from."""
        frames = [frame, *(each for node in self.reachable(frame) for each in node.inputs)]
        return [operator for each in frames for operator in stateful_operators(each)]

    def keeps_state(self, frame: DataFrame) -> bool:
        """Whether a step before these rows keeps state: an operator of ours, or one of Spark's."""
        return any(node.keeps_state for node in self.reachable(frame)) or bool(self.spark_operators(frame))


def name_next(name: str | None) -> None:
    """Give this name to the operator that is added next, in the plan of the function that runs."""
    plan = active_plan()
    if name is not None and plan is not None:
        plan.name_next(name)


def current_plan(what: str) -> LogicalPlan:
    """The plan that the running function of a job adds to; an error outside of such a function."""
    plan = _current.get(None)
    if plan is None:
        raise Misuse(
            f"{what} can be used only inside a job: write a function that returns a DataFrame, and decorate "
            "it with @app.job(into=…)."
        )
    return plan


def active_plan() -> LogicalPlan | None:
    """The plan that the running function of a job adds to; None outside of such a function."""
    return _current.get(None)
