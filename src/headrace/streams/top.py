"""The best rows of each window: a ranking of its results.

The results of a window that emits them once all come in the micro-batch that closes it: the rows of one batch
are enough to rank them, and nothing is kept. Results that change are kept until their window is over, and
each batch that changes one emits the ranks that change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, get_args

from headrace.columns.changelog import ChangelogKernel
from headrace.columns.ranking import ChangingRanking, Ranking, Ties
from headrace.engine.changelog import with_weight
from headrace.engine.columns import listed
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.spark.keyed_stage import arrow_schema
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


def top_rows(
    rows: Rows,
    count: int,
    *,
    order: str | Sequence[str],
    by: str | Sequence[str] = (),
    ties: Ties = "row_number",
) -> Rows:
    """The first `count` rows of each window, and within it of each value of the columns `by`; with ranks.

    `order` names columns, each with `desc` or `asc` behind it (which may be left out); nulls come last. Rows
    that are equal in these are ordered by all their other columns, so that a rerun ranks them alike; with
    `ties="rank"` and `"dense_rank"` they have the same rank, and all rows of a rank up to `count` are given.
    """
    if ties not in get_args(Ties):
        raise Misuse(f"ties={ties!r} is not known: use {', '.join(get_args(Ties))}.")
    groups = (START, END, *((by,) if isinstance(by, str) else by))
    ordering = dict(_direction(text) for text in ((order,) if isinstance(order, str) else order))
    _check(rows, count, groups, ordering)
    names = rows.frame.columns
    others = {name: DIRECTIONS["asc"] for name in names if name not in (*groups, *ordering)}
    ranking = Ranking(
        count=count,
        groups=tuple(groups),
        order=tuple((ordering | others).items()),
        rank=RANK,
        ties=ties,
        compared=len(ordering),
    )
    plan = current_plan("top()")
    is_changing = plan.is_changelog(rows.frame)
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([*rows.frame.schema.fields, StructField(RANK, IntegerType())])
    node = plan.add(
        ChangingTop if is_changing else Top,
        schema,
        inputs=(rows.frame,),
        behind_ms=rows.behind_ms,
        is_changelog=is_changing,
        reads_weights=is_changing,
        ranking=ranking,
        order=tuple(ordering),
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

        frame = planner.frame(self.inputs[0])
        places = {name: f"column{number}" for number, name in enumerate(frame.columns)}
        # `mapInArrow` cannot find columns with a dot in their names.
        ranking = replace(
            self.ranking,
            groups=tuple(places[name] for name in self.ranking.groups),
            order=tuple((places[name], direction) for name, direction in self.ranking.order),
        )
        plain = by_position(frame).repartition(*ranking.groups)
        return PlannedRows.of(ArrowStep.of(plain, ranking, self._schema()))

    def details(self) -> Mapping[str, str]:
        """How many rows, and by what."""
        return {"keeps": f"the first {self.ranking.count} of each window by {', '.join(self.order)}"}

    def _schema(self) -> StructType:
        from pyspark.sql.types import StructField, StructType

        fields = self.rows.schema.fields
        named = [StructField(f"column{n}", field.dataType) for n, field in enumerate(fields[:-1])]
        return StructType([*named, fields[-1]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangingTop(KeyedOperator):
    """The first rows of each window whose results change: the state are all results of open windows."""

    kind: ClassVar[str] = "top"
    takes_changelogs: ClassVar[bool] = True
    ranking: Ranking
    order: tuple[str, ...]

    def plan(self, planner: Planner) -> PlannedRows:
        """The ranks that change."""
        schema, names = with_weight(self.rows.schema), list(self.ranking.groups)
        operation = ChangingRanking(name=self.name, ranking=self.ranking, end=END)
        fields = self.inputs[0].schema.simpleString()
        step = self.staged(
            planner,
            planner.weighted_frame(self.inputs[0]),
            spread=names,
            keys=self.ranking.groups,
            kernel=ChangelogKernel(operation=operation, output=arrow_schema(schema), is_final=False),
            schema=schema,
            behind_ms=self.behind_ms,
            outline=f"the {self.definition} of {fields} by {', '.join(names)}",
        )
        return PlannedRows.of(step)

    def details(self) -> Mapping[str, str]:
        """How many rows, and by what."""
        kept = f"the first {self.ranking.count} of each window by {', '.join(self.order)}"
        return {"keeps": kept, "state": "the results of open windows"}

    @property
    def definition(self) -> str:
        """The ranking."""
        order = ", ".join(f"{name} {direction}" for name, direction in self.ranking.order)
        return f"first {self.ranking.count} rows ({self.ranking.ties}) by {order}"


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
            "top() ranks the results of tumbling or hopping windows: "
            'orders.window(tumbling("1 minute"), by="product").agg(…).top(3, order="revenue desc"). For '
            "other rows it is not known when the last one has come."
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
    """Whether results of windows can be ranked: they change, or all of a window are in one batch."""
    plan = current_plan("top()")
    if rows.event_time != END:
        return False
    if plan.is_changelog(rows.frame):
        return True
    if rows.windowed is None:
        return False
    return plan.spark_operators(rows.frame) == plan.spark_operators(rows.windowed)
