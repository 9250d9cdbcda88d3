"""The best rows of each window: a ranking of its results, given once, when the window has closed.

All results of a window come out in the micro-batch whose watermark closes it, whatever computes them: its end
is the time by which Spark, and the stages here, decide that. So the rows of one batch are enough to rank
them, and nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.columns.ranking import Ranking
from headrace.engine.columns import listed
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.streams.window_assignment import END, START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType

    from headrace.columns.ranking import Direction
    from headrace.engine.planner import Planner
    from headrace.streams.rows import Rows

RANK: Final = "rank"
NESTED: Final = ("struct", "array", "map", "variant")
DIRECTIONS: Final[dict[str, Direction]] = {"asc": "ascending", "desc": "descending"}


def top_rows(rows: Rows, count: int, *, order: str | Sequence[str], by: str | Sequence[str] = ()) -> Rows:
    """The first `count` rows of each window, and within it of each value of the columns `by`; with ranks.

    `order` names columns, each with `desc` or `asc` behind it (which may be left out); nulls come last. Rows
    that are equal in these are ordered by all their other columns, so that a rerun ranks them alike.
    """
    groups = (START, END, *((by,) if isinstance(by, str) else by))
    ordering = dict(_direction(text) for text in ((order,) if isinstance(order, str) else order))
    _check(rows, count, groups, ordering)
    names = rows.frame.columns
    ties = {name: DIRECTIONS["asc"] for name in names if name not in (*groups, *ordering)}
    ranking = Ranking(
        count=count,
        groups=tuple(_place(names, name) for name in groups),
        order=tuple((_place(names, name), direction) for name, direction in (ordering | ties).items()),
        rank=RANK,
    )
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([*rows.frame.schema.fields, StructField(RANK, IntegerType())])
    node = current_plan("top()").add(
        Top, schema, inputs=(rows.frame,), behind_ms=rows.behind_ms, ranking=ranking, order=tuple(ordering)
    )
    return replace(rows, frame=node.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Top(LogicalNode):
    """The first rows of each window, which are all in one batch."""

    kind: ClassVar[str] = "top"
    shuffles: ClassVar[bool] = True
    ranking: Ranking
    order: tuple[str, ...]

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows with their ranks."""
        from headrace.spark.arrow_step import ArrowStep, by_position

        plain = by_position(planner.frame(self.inputs[0]))
        ranked = ArrowStep.of(plain.repartition(*self.ranking.groups), self.ranking, self._schema())
        return PlannedRows.of(ranked)

    def details(self) -> Mapping[str, str]:
        """How many rows, and by what."""
        return {"keeps": f"the first {self.ranking.count} of each window by {', '.join(self.order)}"}

    def _schema(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        fields = self.rows.schema.fields
        named = [StructField(f"column{n}", field.dataType) for n, field in enumerate(fields[:-1])]
        return StructType([*named, fields[-1]])


def _direction(text: str) -> tuple[str, Direction]:
    """A column and its direction.

    >>> _direction("revenue desc"), _direction("name"), _direction("net price ASC")
    (('revenue', 'descending'), ('name', 'ascending'), ('net price', 'ascending'))
    """
    name, _, word = text.strip().rpartition(" ")
    if name and word.lower() in DIRECTIONS:
        return name.strip(), DIRECTIONS[word.lower()]
    return text.strip(), "ascending"


def _check(rows: Rows, count: int, groups: Sequence[str], ordering: dict[str, Direction]) -> None:
    frame = rows.frame
    if count < 1:
        raise Misuse(f"top({count}, …): there has to be at least one row to give.")
    if not _are_whole_windows(rows):
        raise Misuse(
            "top() ranks the results of tumbling or hopping windows that are given once, when they close: "
            'orders.window(tumbling("1 minute"), by="product").agg(…).top(3, order="revenue desc"). Of other '
            "rows nobody knows whether a better one will come."
        )
    if not ordering:
        raise Misuse('top() needs to know what is best: order="revenue desc", for example.')
    missing = [name for name in (*groups, *ordering) if name not in frame.columns]
    if missing:
        raise Misuse(
            f"top() looks at {listed(missing)}, which the rows do not have: their columns are "
            f"{listed(frame.columns)}."
        )
    if RANK in frame.columns:
        raise Misuse(f"top() adds a column {RANK!r}, and the rows have one: rename it by transform().")
    nested = [name for name in (*groups, *ordering) if frame.schema[name].dataType.typeName() in NESTED]
    if nested:
        raise Misuse(f"top() cannot order by {listed(nested)}, which have parts: name single values.")


def _are_whole_windows(rows: Rows) -> bool:
    """Whether all rows of a window are in one batch: no step behind the window has kept some of them."""
    if rows.windowed is None or rows.event_time != END:
        return False
    plan = current_plan("top()")
    return plan.spark_operators(rows.frame) == plan.spark_operators(rows.windowed)


def _place(names: Sequence[str], name: str) -> str:
    """The name of a column by its position: `mapInArrow` cannot find those with a dot in their names."""
    return f"column{names.index(name)}"
