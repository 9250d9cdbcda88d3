"""How a job's streams are joined, which depends on the steps that follow.

A pair may be older than the watermark, by as much as its rows may be apart. Spark's own steps leave out what
is older, unless the join is Spark's too. So where such steps follow a join, the watermark of the whole job is
held back by that much, and all stages are told. Where steps would need it by different times, Spark joins.

The tasks of a stage are known by their numbers, which a `union` or a `coalesce` changes: rows that go into
one are shuffled before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.streams.plan import analysed_plan, inputs_of, keeps_state, nodes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStrategy:
    """What the making of a job's joins has to know of the whole job."""

    is_native: bool = False
    """Whether Spark joins."""
    is_shuffled: bool = False
    """Whether rows are shuffled once more behind a stage."""
    behind_ms: int = 0
    """By how much the watermark of the job is held back."""


def join_strategy(frame: DataFrame) -> JoinStrategy:
    """How the joins of a query, which was made with stages of ours, have to be made."""
    from headrace.spark.join_task import NAME
    from headrace.spark.keyed_stage import SLOT

    plan = analysed_plan(frame)
    text = str(plan.toString())
    if SLOT not in text:
        return JoinStrategy()
    nodes = list(nodes_of(plan))
    is_shuffled = any(_mixes(node) and any(map(_is_open, inputs_of(node))) for node in nodes)
    if NAME not in text:
        return JoinStrategy(is_shuffled=is_shuffled)
    native = [node for node in nodes if keeps_state(node)]
    behind_ms = {_behind_ms(node) for node in native}
    if len(behind_ms) > 1 or any(node.nodeName() == "Join" for node in native):
        return JoinStrategy(is_native=True)
    return JoinStrategy(behind_ms=behind_ms.pop() if behind_ms else 0, is_shuffled=is_shuffled)


def _behind_ms(node: Any) -> int:
    """How far rows may be behind the watermark when a step gets them."""
    return max((_join_ms(child) or _behind_ms(child) for child in inputs_of(node)), default=0)


def _join_ms(node: Any) -> int:
    """How far behind the watermark a join of ours lets rows out; 0 if the node is none."""
    from headrace.spark.join_task import NAME

    if node.nodeName() != "MapInArrow":
        return 0
    _, is_join, rest = str(node.functionExpr().toString()).partition(NAME)
    return int(rest.partition("(")[0]) if is_join else 0


def _mixes(node: Any) -> bool:
    """Whether tasks have other numbers behind a node."""
    return node.nodeName() == "Union" or (node.nodeName() == "Repartition" and not node.shuffle())


def _is_open(node: Any) -> bool:
    """Whether there is a stage of ours before a node, without a shuffle behind it."""
    if _is_stage(node):
        return True
    if node.nodeName() == "RepartitionByExpression" or (node.nodeName() == "Repartition" and node.shuffle()):
        return False
    return any(map(_is_open, inputs_of(node)))


def _is_stage(node: Any) -> bool:
    """Whether a node is the step of a stage: its tasks are told their numbers by a column."""
    from headrace.spark.keyed_stage import SLOT

    return node.nodeName() == "MapInArrow" and any(
        SLOT in str(before.output().toString()) for before in inputs_of(node)
    )
