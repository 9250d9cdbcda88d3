"""Keyed stages of a job: each has its number, its folder, and what is done before every batch."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from headrace.columns.window_preparation import prepare_windows
from headrace.spark.keyed_stage import KeyedStage, shuffle_partitions
from headrace.spark.keyed_state import local_folder, read_note
from headrace.streams.building import current_building
from headrace.streams.columns import quoted
from headrace.streams.description import IncompatibleChange

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
    building = current_building(what)
    numbers = building.plan.once("stages", itertools.count)
    made = KeyedStage(
        folder=f"{building.state}/stage-{next(numbers)}",
        # The watermark of the job may be held back for what follows joins, but not for this.
        behind_ms=behind_ms - building.join_way.behind_ms,
        **stage,
    )
    building.plan.stages.append(made.outline)
    building.plan.check(lambda: _check_outline(made, building.job))
    building.plan.before(lambda batch: made.prepare(batch, frame))
    step = made.step(frame)
    if not building.join_way.is_shuffled:
        return step
    partitions = shuffle_partitions(frame) if spread else 1
    return step.giving(step.rows.repartition(partitions, *map(quoted, spread)))


def _check_outline(made: KeyedStage, job: str) -> None:
    note = read_note(local_folder(made.folder))
    if note is not None and note.outline != made.outline:
        raise IncompatibleChange(
            f"job {job!r} kept state for {note.outline}, and now it would be {made.outline}. Undo "
            "the change; or give the changed job a new name, so that both have their own state; or begin "
            f"anew with `headrace job reset {job.rpartition('.')[2]} --to start` (or --to end, or a time)."
        )
