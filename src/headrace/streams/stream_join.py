"""Two streams joined: rows whose keys are equal, and whose times are near each other.

Spark keeps the rows of both sides until no row that is still to come can match them: the time allowed after
them, measured by the watermark. Matches come out as soon as both rows are there; what had no match comes out,
in a left, right or full join, once, when its time has passed.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.columns import key_pairs, listed, names_beside, quoted
from headrace.streams.event_time import as_plain_time, mark_like, timed_frame
from headrace.streams.query_builder import current_builder
from headrace.streams.rows import Rows
from headrace.streams.staged_join import WHOLE_NUMBERS, How, JoinPlan, join_in_a_stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

    from headrace.durations import Duration
    from headrace.spark.arrow_step import ArrowStep
    from headrace.streams.rows import On

Within: TypeAlias = "Duration | tuple[Duration, Duration]"
"""How far apart the times may be; a pair says how far the right one may lie before and after the left one."""

HOW: Final = ("inner", "left", "right", "full")
LEFT: Final = "left_"
RIGHT: Final = "right_"
"""Put before the names of columns while they are joined, so that each is named once."""


def join_streams(left: Rows, right: Rows, on: On, *, within: Within, how: How = "inner") -> Rows:
    """Every pair of rows with equal keys and times at most `within` apart.

    The columns are the keys, under the names of the left; the left's others; and the right's others. Where
    the right has a name that is taken, it gets the name of its topic before it: `payments_at`. The event time
    is the left's; in a right join it is the right's, and after a full join there is none.

    A key that is null equals nothing, and a row without a time is near nothing.
    """
    if how not in HOW:
        raise Misuse(f"how={how!r}: a join of streams is one of {', '.join(HOW)}.")
    one, other = timed_frame(left, "the left side of a join"), timed_frame(right, "the right side of a join")
    pairs = key_pairs(on, one.columns, other.columns)
    _check_types(one, other, pairs)
    bounds_ms = _bounds_ms(within)
    beside = [name for name in other.columns if name not in pairs.values()]
    names = names_beside(beside, {*pairs, *one.columns}, right.topic or "right")
    time = _result_time(left, right, how, names | {other: one for one, other in pairs.items()})
    plan = JoinPlan(
        left=one,
        right=other,
        times=(left.event_time or "", right.event_time or ""),
        pairs=pairs,
        names=names,
        how=how,
        bounds_ms=bounds_ms,
        behind_ms=max(left.behind_ms, right.behind_ms),
    )

    def joined() -> Rows:
        frame, step = _joined(plan, time)
        return Rows(
            frame=frame,
            step=step,
            event_time=time,
            watermark_delay=None if time is None else (right if how == "right" else left).watermark_delay,
            # What Spark takes off the watermark for those that follow.
            behind_ms=plan.behind_ms + max(bounds_ms) + 1,
        )

    return current_builder("a join").stateful(joined, lambda: [one, other])


def _joined(plan: JoinPlan, time: str | None) -> tuple[DataFrame, ArrowStep | None]:
    step = join_in_a_stage(plan)
    if step is None:
        return _join_of_spark(plan, time), None
    if time is None:
        return step.rows, step
    is_right = plan.how == "right"
    side = plan.right if is_right else plan.left
    marked = mark_like(step.rows, time, side.schema[plan.times[is_right]].metadata)
    return marked, step.giving(marked)


def _join_of_spark(plan: JoinPlan, time: str | None) -> DataFrame:
    near = _near(f"{LEFT}{plan.times[0]}", f"{RIGHT}{plan.times[1]}", plan.bounds_ms)
    sides = _prefixed(plan.left, LEFT), _prefixed(plan.right, RIGHT)
    joined = sides[0].join(sides[1], _equal(plan.pairs) & near, plan.how)
    return joined.select(*_columns(joined, plan.left, plan.pairs, plan.names, plan.how, time))


def _result_time(left: Rows, right: Rows, how: How, names: Mapping[str, str]) -> str | None:
    """The column that is there in every row of the result and has a time; Spark follows no computed one."""
    if how == "full":
        return None
    return names[right.event_time or ""] if how == "right" else left.event_time


def _bounds_ms(within: Within) -> tuple[int, int]:
    """How long before and how long after the left row the right one may have happened."""
    before, after = within if isinstance(within, tuple) else (within, within)
    return milliseconds_of(before, "within"), milliseconds_of(after, "within")


def _prefixed(frame: DataFrame, prefix: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return frame.select(*(F.col(quoted(name)).alias(prefix + name) for name in frame.columns))


def _equal(pairs: Mapping[str, str]) -> Column:
    """Keys that are there and are equal."""
    from pyspark.sql import functions as F  # noqa: N812

    # That they are there is said for each side on its own: Spark's full join would take two nulls for equal,
    # and a row that cannot match anything is let out at once instead of being kept.
    sides = [(F.col(quoted(LEFT + one)), F.col(quoted(RIGHT + other))) for one, other in pairs.items()]
    return reduce(and_, ((one == other) & one.isNotNull() & other.isNotNull() for one, other in sides))


def _near(left: str, right: str, bounds_ms: tuple[int, int]) -> Column:
    """Times near each other, in the form from which Spark derives how long a row has to be kept."""
    from pyspark.sql import functions as F  # noqa: N812

    before, after = (F.expr(f"interval {ms} milliseconds") for ms in bounds_ms)
    one, other = F.col(quoted(left)), F.col(quoted(right))
    return one.isNotNull() & other.isNotNull() & (other >= one - before) & (other <= one + after)


def _columns(
    joined: DataFrame,
    left: DataFrame,
    pairs: Mapping[str, str],
    names: Mapping[str, str],
    how: How,
    time: str | None,
) -> list[Column]:
    """The columns of the result; of the two event times only `time` stays one."""
    keys = [_key(one, other, how).alias(one) for one, other in pairs.items()]
    others = {LEFT + name: name for name in left.columns if name not in pairs}
    others |= {RIGHT + name: new for name, new in names.items()}
    from pyspark.sql import functions as F  # noqa: N812

    return keys + [
        F.col(quoted(name)).alias(new) if new == time else as_plain_time(joined, name, new)
        for name, new in others.items()
    ]


def _key(left: str, right: str, how: How) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    one, other = F.col(quoted(LEFT + left)), F.col(quoted(RIGHT + right))
    if how == "full":
        return F.coalesce(one, other)
    return other if how == "right" else one


def _check_types(left: DataFrame, right: DataFrame, pairs: Mapping[str, str]) -> None:
    """Refuse to compare what Spark would have to convert: a text that is no number would end the job."""
    for one, other in pairs.items():
        kinds = [left.schema[one].dataType.typeName(), right.schema[other].dataType.typeName()]
        if left.schema[one].dataType != right.schema[other].dataType and not set(kinds) <= set(WHOLE_NUMBERS):
            raise Misuse(
                f"the join compares {listed([one])}, a {kinds[0]}, with {listed([other])}, a {kinds[1]}: "
                "make them the same type, in the streams' schemas or by transform()."
            )
