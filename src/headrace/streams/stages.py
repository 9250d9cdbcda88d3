"""Keyed stages of a job: each has its number, its folder, and what is done before every batch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from headrace.columns.window_preparation import prepare_windows
from headrace.engine.state.operators import read_operator
from headrace.spark.keyed_stage import KeyedStage, shuffle_partitions
from headrace.streams.aggregates import VALUE
from headrace.streams.columns import quoted
from headrace.streams.description import IncompatibleChange
from headrace.streams.query_builder import current_builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.spark.arrow_step import ArrowStep


def staged(
    frame: DataFrame, what: str, *, spread: Sequence[str], behind_ms: int = 0, **stage: Any
) -> ArrowStep:
    """A stage over the rows of `frame`; the other arguments are those of `KeyedStage`.

    Its rows are shuffled once more, by the columns `spread`, where they go into a union: there the tasks
    would have other numbers. A job that computes something else than its state was made for is refused.
    """
    prepare_windows()
    builder = current_builder(what)
    numbers = builder.plan.once("stages", itertools.count)
    made = KeyedStage(
        folder=f"{builder.state}/stage-{next(numbers)}",
        # The watermark of the job may be held back for what follows joins, but not for this.
        behind_ms=behind_ms - builder.join_strategy.behind_ms,
        **stage,
    )
    builder.plan.stages.append(made.outline)
    builder.plan.check(lambda: _check_outline(made, builder.job))
    builder.plan.before(lambda batch: made.prepare(batch, frame))
    step = made.step(frame)
    if not builder.join_strategy.is_shuffled:
        return step
    partitions = shuffle_partitions(frame) if spread else 1
    return step.giving(step.rows.repartition(partitions, *map(quoted, spread)))


def _check_outline(made: KeyedStage, job: str) -> None:
    note = read_operator(made.folder)
    if note is None:
        return
    if note.outline != made.outline:
        raise _incompatible(job, f"kept state for {note.outline}, and now it would be {made.outline}")
    for name, kind in made.columns.items():
        before = note.columns.get(name, kind)
        if before != kind:
            shown = name.removeprefix(VALUE).strip()
            raise _incompatible(job, f"kept {shown} as {before} for {note.outline}, and now it is {kind}")


def _incompatible(job: str, what: str) -> IncompatibleChange:
    return IncompatibleChange(
        f"job {job!r} {what}. Undo the change; or give the changed job a new name, so that both have their "
        f"own state; or reset it with `headrace job reset {job.rpartition('.')[2]} --to start` (or --to end, "
        "or a time)."
    )
