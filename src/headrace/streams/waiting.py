"""Rows held back until a table can be expected to know what happened by then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.durations import duration_text, milliseconds_of
from headrace.errors import Misuse
from headrace.streams.event_time import as_plain_time, timed_frame
from headrace.streams.query_builder import current_builder

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.durations import Duration
    from headrace.streams.rows import Rows


def hold_rows(rows: Rows, keys: tuple[str, ...], delay: Duration) -> Rows:
    """The same rows, each when the watermark has passed its time by `delay`.

    The watermark of the query is behind them then: they have no event time for the steps that follow.
    """
    from headrace.engine.state.operators import read_operator
    from headrace.spark.keyed_stage import KeyedStage
    from headrace.tables.waiting import HoldRows

    marked = timed_frame(rows, "a join that waits for its table")
    frame = marked.select(*(as_plain_time(marked, name, name) for name in marked.columns))
    assert rows.event_time is not None, "a frame with a time has a column for it"
    builder = current_builder("delay=")
    plan = builder.plan
    folders = plan.once("folders of rows that wait", list[str])
    folders.append(f"{builder.state}/wait-{len(folders)}")
    stage = KeyedStage(
        folder=folders[-1],
        keys=keys,
        kernel=HoldRows(time=rows.event_time, wait_us=milliseconds_of(delay, "delay") * 1000),
        schema=frame.schema,
        outline=_outline(keys, frame.schema),
        behind_ms=rows.behind_ms - builder.join_strategy.behind_ms,
    )
    note = read_operator(stage.folder)
    if note is not None and note.outline != stage.outline:
        raise Misuse(
            f"rows wait for a table as {note.outline}, and the job now has {stage.outline}: undo the change, "
            "give the job a new name, or reset it."
        )
    plan.stages.append(f"rows that wait for a table: {stage.outline}")
    plan.before(lambda batch: stage.prepare(batch, frame))
    step = stage.step(frame)
    untimed_by = f"join(…, delay={duration_text(delay)!r})"
    return replace(
        rows, frame=step.rows, step=step, event_time=None, watermark_delay=None, untimed_by=untimed_by
    )


def _outline(keys: tuple[str, ...], schema: StructType) -> str:
    return f"{schema.simpleString()} by {', '.join(keys)}"
