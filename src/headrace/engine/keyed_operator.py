"""Operators that keep state by key: what their logical nodes have in common.

The state of an operator is in a folder that has the operator's name. What it depends on is compared before a
job starts: a job that computes something else than its state was made for is refused in the operator's terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.columns.preparation import prepare_windows
from headrace.engine.aggregates import VALUE
from headrace.engine.columns import quoted
from headrace.engine.description import IncompatibleChange
from headrace.engine.logical import LogicalNode
from headrace.spark.keyed_stage import KeyedStage, shuffle_partitions
from headrace.state.operators import read_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.engine.planner import Planner
    from headrace.spark.arrow_step import ArrowStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedOperator(LogicalNode):
    """An operator whose tasks keep state for the keys of their partition."""

    keeps_state: ClassVar[bool] = True
    is_open: ClassVar[bool] = True

    def staged(
        self, planner: Planner, frame: DataFrame, *, spread: Sequence[str], behind_ms: int, **stage: Any
    ) -> ArrowStep:
        """The operator over the rows of `frame`; the other arguments are those of `KeyedStage`.

        Where tasks behind it have other numbers, its rows are shuffled by the columns `spread`.
        """
        prepare_windows()
        made = KeyedStage(
            folder=planner.folder_of(self), behind_ms=planner.behind_ms(self, behind_ms), **stage
        )
        planner.hooks.state[self.name] = made.outline
        planner.hooks.check(lambda: _check_outline(self.name, made, planner.plan.job))
        planner.hooks.before(lambda batch: made.prepare(batch, frame))
        step = made.step(frame)
        if not planner.is_shuffled(self):
            return step
        partitions = shuffle_partitions(frame) if spread else 1
        return step.giving(step.rows.repartition(partitions, *map(quoted, spread)))


def _check_outline(name: str, stage: KeyedStage, job: str) -> None:
    manifest = read_operator(stage.folder)
    if manifest is None:
        return
    if manifest.outline != stage.outline:
        raise incompatible(job, f"{name} kept state for {manifest.outline}, and now for {stage.outline}")
    for column, kind in stage.columns.items():
        before = manifest.columns.get(column, kind)
        if before != kind:
            shown = column.replace(f"{VALUE} ", "")
            raise incompatible(
                job, f"{name} kept {shown} as {before} for {manifest.outline}, and now it is {kind}"
            )


def incompatible(job: str, what: str) -> IncompatibleChange:
    """The refusal of a job whose operator has changed."""
    name = job.rpartition(".")[2]
    return IncompatibleChange(
        f"job {job!r} was changed: {what}. Undo the change; or give the changed job a new name, so that both "
        f"have their own state; or reset it with `headrace job reset {name} --to start` (or --to end, or a "
        "time)."
    )
