"""The best rows of each window: a ranking of its results, given once, when the window has closed.

All results of a window come out in the micro-batch whose watermark closes it, whatever computes them: its end
is the time by which Spark, and the stages here, decide that. So the rows of one batch are enough to rank
them, and nothing is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.columns.ranking import Ranking
from headrace.errors import Misuse
from headrace.streams.columns import listed, quoted
from headrace.streams.plan import stateful_operators
from headrace.streams.window_assignment import END, START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.columns.ranking import Direction
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
    return replace(rows, frame=_ranked(rows.frame, ranking))


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
    return stateful_operators(rows.frame) == stateful_operators(rows.windowed)


def _place(names: Sequence[str], name: str) -> str:
    """The name of a column by its position: `mapInArrow` cannot find those with a dot in their names."""
    return f"column{names.index(name)}"


def _ranked(frame: DataFrame, ranking: Ranking) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
    from pyspark.sql.types import IntegerType, StructField, StructType

    plain = frame.toDF(*(_place(frame.columns, name) for name in frame.columns))
    schema = StructType([*plain.schema.fields, StructField(ranking.rank, IntegerType())])
    best = plain.repartition(*ranking.groups).mapInArrow(ranking, schema)
    # A step in Python loses the mark of the event time.
    columns = [
        F.col(quoted(_place(frame.columns, field.name))).alias(field.name, metadata=field.metadata)
        for field in frame.schema
    ]
    return best.select(*columns, ranking.rank)
