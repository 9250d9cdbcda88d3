"""A join of two streams as a keyed stage: both sides in one stream of rows, told apart by a column.

```text
left  ──▶ side 0, code, time, keys, left's columns,  nulls ──┐
                                                             ├──▶ shuffle by code ──▶ kernel ──▶ pairs
right ──▶ side 1, code, time, keys, nulls, right's columns ──┘
```

The code stands for the key: a whole number is its own, and of other keys it is a hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.streams.columns import quoted
from headrace.streams.query_builder import current_builder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.columns.joining import From
    from headrace.spark.arrow_step import ArrowStep

How = Literal["inner", "left", "right", "full"]

WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
COMPARED: Final = ("string", "binary", "boolean", "date", "timestamp", "timestamp_ntz")
"""Types of keys that are equal when their Arrow values are; floating-point numbers are not among them."""
UNKNOWN: Final = ("variant", "interval", "void", "geometry", "geography")
"""Types that not every library on the way of a row knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPlan:
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

    @property
    def keeps(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, come out without a match."""
        return self.how in ("left", "full"), self.how in ("right", "full")

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


def join_in_a_stage(plan: JoinPlan) -> ArrowStep | None:
    """The step that gives the rows of the join; None where Spark's own join has to do it.

    That is where rows are no stream, state is not kept in a folder, a type is not known here, or the steps
    around the join ask for it (`JoinStrategy`).
    """
    if not _is_possible(plan):
        return None
    from headrace.columns.joining import JoinKernel
    from headrace.columns.segments import AT, CODE
    from headrace.spark.join_task import JoinTask
    from headrace.spark.keyed_stage import arrow_schema
    from headrace.streams.stages import staged

    keys = () if plan.is_code else tuple(_name("key", position) for position in range(len(plan.pairs)))
    columns = tuple(
        tuple(_name(side, position) for position, name in enumerate(names) if name != time)
        for side, names, time in zip(("left", "right"), plan.others, plan.times, strict=True)
    )
    kernel = JoinKernel(
        keys=keys,
        columns=(columns[0], columns[1]),
        keeps=plan.keeps,
        before_us=1000 * plan.bounds_ms[0],
        after_us=1000 * plan.bounds_ms[1],
        result=_result(plan, keys or (CODE,), AT),
        output=arrow_schema(plan.schema),
    )
    rows = _tagged(plan, 0).unionByName(_tagged(plan, 1))
    return staged(
        rows,
        "a join",
        spread=tuple(plan.pairs),
        keys=(CODE,),
        kernel=kernel,
        schema=plan.schema,
        behind_ms=plan.behind_ms,
        outline=_outline(plan, rows),
        task=JoinTask,
    )


def _outline(plan: JoinPlan, rows: DataFrame) -> str:
    before_ms, after_ms = plan.bounds_ms
    within = f"from {before_ms} ms before to {after_ms} ms after"
    return f"the {plan.how} join by {', '.join(plan.pairs)}, {within}, of {rows.schema.simpleString()}"


def _is_possible(plan: JoinPlan) -> bool:
    from headrace.engine.state.files import local_folder

    try:
        builder = current_builder("a join")
        local_folder(builder.state)
    except Misuse:
        return False
    if builder.join_strategy.is_native or not (plan.left.isStreaming and plan.right.isStreaming):
        return False
    keys = [kind.simpleString() for kind in plan.key_types]
    columns = [field.dataType.simpleString() for field in plan.schema]
    is_unknown = any(word in column for column in columns for word in UNKNOWN)
    return all(map(_is_compared, keys)) and not is_unknown


def _is_compared(kind: str) -> bool:
    return kind in COMPARED or kind.startswith("decimal") or kind in ("tinyint", "smallint", "int", "bigint")


def _width(kind: DataType) -> int:
    return WHOLE_NUMBERS.index(kind.typeName()) if kind.typeName() in WHOLE_NUMBERS else 0


def _name(what: str, position: int) -> str:
    return f"{what}{position}"


def _result(plan: JoinPlan, keys: tuple[str, ...], at: str) -> tuple[From, ...]:
    """Where the columns of the result come from."""
    from headrace.columns.joining import From

    made = [From(key) for key in keys]
    for side, what in enumerate(("left", "right")):
        for position, name in enumerate(plan.others[side]):
            made.append(From(at if name == plan.times[side] else _name(what, position), side))
    return tuple(made)


def _tagged(plan: JoinPlan, side: int) -> DataFrame:
    """The rows of one side, with nulls for the columns of the other."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    from headrace.columns.joining import SIDE
    from headrace.columns.segments import AT, CODE
    from headrace.spark.keyed_stage import SLOT, shuffle_partitions

    frame = (plan.left, plan.right)[side]
    keys = [F.col(quoted(name)) for name in ((*plan.pairs,), (*plan.pairs.values(),))[side]]
    wide = [key.cast(_wide(kind)) for key, kind in zip(keys, plan.key_types, strict=True)]
    at = F.col(quoted(plan.times[side]))
    if not plan.keeps[side]:
        frame = frame.filter(reduce(and_, (key.isNotNull() for key in keys), at.isNotNull()))
    has_key = reduce(and_, (key.isNotNull() for key in wide))
    code = wide[0] if plan.is_code else F.when(has_key, F.xxhash64(*wide))
    columns = [F.lit(side).cast("byte").alias(SIDE), code.alias(CODE), at.alias(AT)]
    if not plan.is_code:
        columns += [key.alias(_name("key", position)) for position, key in enumerate(wide)]
    tagged = frame.select(*columns, *_payload(plan, side))
    if SLOT in str(frame._jdf.queryExecution().analyzed().toString()):
        # Tasks of a stage are known by their numbers, which a union changes; a shuffle before it does not.
        return tagged.repartition(shuffle_partitions(frame), CODE)
    return tagged


def _wide(kind: DataType) -> str:
    return "long" if kind.typeName() in WHOLE_NUMBERS else kind.simpleString()


def _payload(plan: JoinPlan, side: int) -> list[Column]:
    from pyspark.sql import functions as F  # noqa: N812

    made = []
    for other, what in enumerate(("left", "right")):
        schema = (plan.left, plan.right)[other].schema
        for position, name in enumerate(plan.others[other]):
            if name == plan.times[other]:
                continue
            column = F.col(quoted(name)) if other == side else F.lit(None).cast(schema[name].dataType)
            made.append(column.alias(_name(what, position)))
    return made
