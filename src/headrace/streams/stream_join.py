"""Two streams joined: rows whose keys are equal, and whose times are near each other.

```text
left  ──▶ side 0, code, time, keys, left's columns,  nulls ──┐
                                                             ├──▶ shuffle by code ──▶ kernel ──▶ pairs
right ──▶ side 1, code, time, keys, nulls, right's columns ──┘
```

The rows of both sides are kept until no row that is still to come can match them: the time allowed after
them, measured by the watermark. Matches come out as soon as both rows are there; what had no match comes out,
in a left, right or full join, once, when its time has passed.

The code stands for the key: a whole number is its own, and of other keys it is a hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

from headrace.durations import milliseconds_of
from headrace.engine.changelog import with_weight
from headrace.engine.columns import key_pairs, listed, names_beside, quoted
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.streams.event_time import timed_frame
from headrace.streams.rows import Rows
from headrace.streams.window_assignment import LAST_OF_WINDOW, is_window_end

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.columns.joining import From
    from headrace.durations import Duration
    from headrace.engine.columns import On
    from headrace.engine.planner import Planner

How = Literal["inner", "left", "right", "full"]
Within: TypeAlias = "Duration | tuple[Duration, Duration]"
"""How far apart the times may be; a pair says how far the right one may lie before and after the left one."""

HOW: Final = ("inner", "left", "right", "full")
WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
COMPARED: Final = ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types of keys that are equal when their Arrow values are; floating-point numbers are not among them."""
UNKNOWN: Final = ("variant", "interval", "void", "geometry", "geography")
"""Types that not every library on the way of a row knows."""


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
    spec = JoinSpec(
        left=one,
        right=other,
        times=(left.event_time or "", right.event_time or ""),
        pairs=pairs,
        names=names,
        how=how,
        bounds_ms=bounds_ms,
        behind_ms=max(left.behind_ms, right.behind_ms) + _is_end_ms(left, right),
    )
    _check_columns(spec)
    plan = current_plan("a join")
    is_changing = plan.is_changelog(one) or plan.is_changelog(other)
    node = plan.add(
        ChangingStreamJoin if is_changing else StreamJoin,
        _marked(spec, time),
        inputs=(_tagged(spec, 0).unionByName(_tagged(spec, 1)),),
        is_changelog=is_changing,
        reads_weights=is_changing,
        # A pair comes out with the later of its rows: its time may be as far behind as the two are apart.
        behind_ms=spec.behind_ms + max(bounds_ms) + 1,
        spec=spec,
    )
    return Rows(
        frame=node.rows,
        event_time=time,
        watermark_delay=None if time is None else (right if how == "right" else left).watermark_delay,
        behind_ms=node.behind_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamJoin(KeyedOperator):
    """Pairs of rows of two streams."""

    kind: ClassVar[str] = "join"
    spec: JoinSpec

    def plan(self, planner: Planner) -> PlannedRows:
        """The pairs, with the columns of both sides."""
        from headrace.columns.joining import JoinKernel
        from headrace.columns.segments import AT, CODE
        from headrace.spark.join_task import JoinTask
        from headrace.spark.keyed_stage import arrow_schema

        spec = self.spec
        keys = spec.key_columns
        columns = tuple(
            tuple(_name(side, position) for position, name in enumerate(names) if name != time)
            for side, names, time in zip(("left", "right"), spec.others, spec.at_columns, strict=True)
        )
        kernel = JoinKernel(
            keys=keys,
            columns=(columns[0], columns[1]),
            keeps=spec.keeps,
            before_us=1000 * spec.bounds_ms[0],
            after_us=1000 * spec.bounds_ms[1],
            result=_result(spec, keys or (CODE,), AT),
            output=arrow_schema(spec.schema),
        )
        step = self.staged(
            planner,
            planner.frame(self.inputs[0]),
            spread=tuple(spec.pairs),
            keys=(CODE,),
            kernel=kernel,
            schema=spec.schema,
            behind_ms=spec.behind_ms,
            outline=f"{spec.in_words}, of {self.inputs[0].schema.simpleString()}",
            task=JoinTask,
        )
        return PlannedRows.of(step)

    def evaluated(self) -> Sequence[DataFrame]:
        """The rows of both sides."""
        return (self.spec.left, self.spec.right)

    def details(self) -> Mapping[str, str]:
        """The keys and how far apart times may be."""
        return {"state": f"rows of both sides for {self.spec.in_words}"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangingStreamJoin(StreamJoin):
    """Pairs of rows of which some can be retracted."""

    takes_changelogs: ClassVar[bool] = True

    def plan(self, planner: Planner) -> PlannedRows:
        """The changes of the pairs, and of the rows without a match."""
        from headrace.columns.changelog import ChangelogKernel
        from headrace.columns.changing_joins import ChangingJoin
        from headrace.columns.segments import AT, CODE
        from headrace.spark.keyed_stage import arrow_schema

        spec, schema = self.spec, with_weight(self.spec.schema)
        operation = ChangingJoin(
            name=self.name,
            keys=spec.key_columns,
            keeps=spec.keeps,
            before_us=1000 * spec.bounds_ms[0],
            after_us=1000 * spec.bounds_ms[1],
            result=_result(spec, spec.key_columns or (CODE,), AT),
            output=arrow_schema(spec.schema),
        )
        step = self.staged(
            planner,
            planner.weighted_frame(self.inputs[0]),
            spread=tuple(spec.pairs),
            keys=(CODE,),
            kernel=ChangelogKernel(operation=operation, output=arrow_schema(schema), is_final=False),
            schema=schema,
            behind_ms=spec.behind_ms,
            outline=f"{spec.in_words}, of the changing rows {self.inputs[0].schema.simpleString()}",
        )
        return PlannedRows.of(step)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSpec:
    """What is joined with what."""

    left: DataFrame
    right: DataFrame
    times: tuple[str, str]
    """The columns of the event times."""
    pairs: Mapping[str, str]
    """The columns of the keys, by their names on the left."""
    names: Mapping[str, str]
    """The right's other columns, and what they are called in the result."""
    how: How
    bounds_ms: tuple[int, int]
    behind_ms: int
    """How far rows may be behind the watermark when they come in."""

    @property
    def in_words(self) -> str:
        """What is joined, the same for equal times however they were written."""
        before_ms, after_ms = self.bounds_ms
        within = f"from {before_ms} ms before to {after_ms} ms after"
        return f"the {self.how} join by {', '.join(self.pairs)}, {within}"

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, come out without a match."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def ends(self) -> tuple[bool, bool]:
        """Whether the times of the left, and of the right, are ends of windows."""
        return is_window_end(self.left, self.times[0]), is_window_end(self.right, self.times[1])

    @property
    def at_columns(self) -> tuple[str, str]:
        """The columns of both sides that are not kept beside `AT`: "" where that is another time."""
        left, right = ("" if is_end else time for time, is_end in zip(self.times, self.ends, strict=True))
        return left, right

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of the key in tasks; none where the code is the key itself."""
        return () if self.is_code else tuple(_name("key", position) for position in range(len(self.pairs)))

    @property
    def others(self) -> tuple[list[str], list[str]]:
        """The columns of the left, and of the right, that are no keys."""
        return [name for name in self.left.columns if name not in self.pairs], list(self.names)

    @property
    def key_types(self) -> list[DataType]:
        """The types of the result's keys."""
        sides = [
            (self.left.schema[one].dataType, self.right.schema[other].dataType)
            for one, other in self.pairs.items()
        ]
        if self.how == "full":
            return [max(types, key=_width) for types in sides]
        return [types[self.how == "right"] for types in sides]

    @property
    def is_code(self) -> bool:
        """Whether the key is a whole number, which needs no hash."""
        return len(self.pairs) == 1 and self.key_types[0].typeName() in WHOLE_NUMBERS

    @property
    def schema(self) -> StructType:
        """The columns of the result."""
        from pyspark.sql.types import StructType

        made = StructType()
        for name, kind in zip(self.pairs, self.key_types, strict=True):
            made = made.add(name, kind)
        for name in self.others[0]:
            made = made.add(name, self.left.schema[name].dataType)
        for name, new in self.names.items():
            made = made.add(new, self.right.schema[name].dataType)
        return made


def _result_time(left: Rows, right: Rows, how: How, names: Mapping[str, str]) -> str | None:
    """The column that is there in every row of the result and has a time; Spark follows no computed one."""
    if how == "full":
        return None
    return names[right.event_time or ""] if how == "right" else left.event_time


def _is_end_ms(*sides: Rows) -> int:
    """1 where a side has results of windows.

    Their time is just before the end, and a session that ends within a millisecond is closed by the next one.
    """
    return int(any(is_window_end(rows.frame, rows.event_time or "") for rows in sides))


def _bounds_ms(within: Within) -> tuple[int, int]:
    """How long before and how long after the left row the right one may have happened."""
    before, after = within if isinstance(within, tuple) else (within, within)
    return milliseconds_of(before, "within"), milliseconds_of(after, "within")


def _check_types(left: DataFrame, right: DataFrame, pairs: Mapping[str, str]) -> None:
    """Refuse to compare what Spark would have to convert: a text that is no number would end the job."""
    for one, other in pairs.items():
        kinds = [left.schema[one].dataType.typeName(), right.schema[other].dataType.typeName()]
        if left.schema[one].dataType != right.schema[other].dataType and not set(kinds) <= set(WHOLE_NUMBERS):
            raise Misuse(
                f"the join compares {listed([one])}, a {kinds[0]}, with {listed([other])}, a {kinds[1]}: "
                "make them the same type, in the streams' schemas or by transform()."
            )


def _check_columns(spec: JoinSpec) -> None:
    """Refuse keys and columns of types that cannot be joined."""
    for name, kind in zip(spec.pairs, spec.key_types, strict=True):
        if not _is_compared(kind.simpleString()):
            raise Misuse(
                f"the join compares {name!r}, a {kind.simpleString()}: keys are whole numbers, decimals, "
                "texts, bytes, booleans, dates or timestamps. Convert it by transform(), for example with "
                f'df.withColumn({name!r}, F.col({name!r}).cast("decimal(18,6)")).'
            )
    for field in spec.schema:
        if any(word in field.dataType.simpleString() for word in UNKNOWN):
            raise Misuse(
                f"the join cannot keep the column {field.name!r}, a {field.dataType.simpleString()}: drop it "
                "or convert it by transform() before the join."
            )


def _marked(spec: JoinSpec, time: str | None) -> StructType:
    """The columns of the result; one of the two event times stays one."""
    from pyspark.sql.types import StructField, StructType

    if time is None:
        return spec.schema
    is_right = spec.how == "right"
    mark = (spec.right if is_right else spec.left).schema[spec.times[is_right]].metadata
    return StructType(
        [
            StructField(field.name, field.dataType, metadata=mark if field.name == time else None)
            for field in spec.schema
        ]
    )


def _is_compared(kind: str) -> bool:
    return kind in COMPARED or kind.startswith("decimal") or kind in ("tinyint", "smallint", "int", "bigint")


def _width(kind: DataType) -> int:
    return WHOLE_NUMBERS.index(kind.typeName()) if kind.typeName() in WHOLE_NUMBERS else 0


def _name(what: str, position: int) -> str:
    return f"{what}{position}"


def _result(spec: JoinSpec, keys: tuple[str, ...], at: str) -> tuple[From, ...]:
    """Where the columns of the result come from."""
    from headrace.columns.joining import From

    made = [From(key) for key in keys]
    for side, what in enumerate(("left", "right")):
        for position, name in enumerate(spec.others[side]):
            made.append(From(at if name == spec.at_columns[side] else _name(what, position), side))
    return tuple(made)


def _tagged(spec: JoinSpec, side: int) -> DataFrame:
    """The rows of one side, with nulls for the columns of the other."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    from headrace.columns.joining import SIDE
    from headrace.columns.segments import AT, CODE

    frame = (spec.left, spec.right)[side]
    keys = [F.col(quoted(name)) for name in ((*spec.pairs,), (*spec.pairs.values(),))[side]]
    wide = [key.cast(_wide(kind)) for key, kind in zip(keys, spec.key_types, strict=True)]
    at = F.col(quoted(spec.times[side]))
    if spec.ends[side]:
        at -= F.expr(LAST_OF_WINDOW)
    if not spec.keeps[side]:
        frame = frame.filter(reduce(and_, (key.isNotNull() for key in keys), at.isNotNull()))
    has_key = reduce(and_, (key.isNotNull() for key in wide))
    code = wide[0] if spec.is_code else F.when(has_key, F.xxhash64(*wide))
    columns = [F.lit(side).cast("byte").alias(SIDE), code.alias(CODE), at.alias(AT)]
    if not spec.is_code:
        columns += [key.alias(_name("key", position)) for position, key in enumerate(wide)]
    return frame.select(*columns, *_payload(spec, side))


def _wide(kind: DataType) -> str:
    return "long" if kind.typeName() in WHOLE_NUMBERS else kind.simpleString()


def _payload(spec: JoinSpec, side: int) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    made = []
    for other, what in enumerate(("left", "right")):
        schema = (spec.left, spec.right)[other].schema
        for position, name in enumerate(spec.others[other]):
            if name == spec.at_columns[other]:
                continue
            column = F.col(quoted(name)) if other == side else F.lit(None).cast(schema[name].dataType)
            made.append(column.alias(_name(what, position)))
    return made
