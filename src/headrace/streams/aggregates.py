"""Which of the user's aggregates can be put together from parts, taken from Spark's analysed plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.columns.measures import Measure
from headrace.spark.sums import Value
from headrace.streams.columns import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

    from headrace.columns.measures import Kind

KINDS: Final[Mapping[str, Kind]] = {
    "Sum": "sum",
    "Count": "count",
    "Min": "min",
    "Max": "max",
    "Average": "mean",
}
"""Spark's classes of the aggregates, and ours."""
NUMBERS: Final = {
    "tinyint": "bigint",
    "smallint": "bigint",
    "int": "bigint",
    "bigint": "bigint",
    "float": "double",
    "double": "double",
}
"""The types of values that can be computed with, and as what they are."""
KEYS: Final = frozenset(
    {*NUMBERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "decimal"}
)
"""The types of columns that can be keys of a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregates:
    """What is to be computed of some rows."""

    measures: tuple[Measure, ...]
    values: Mapping[str, Column]
    """The columns that the measures are over, by the names that they have there."""
    fields: tuple[StructField, ...]
    """The keys and the results as columns, with Spark's types."""
    sources: tuple[Value, ...] | None
    """The values as they are in the rows; None where one of them is computed."""


class Uncombinable(Exception):
    """An aggregate that cannot be put together from parts; the text says which."""


def read_aggregates(frame: DataFrame, by: Sequence[str], columns: Sequence[Column]) -> Aggregates:
    """The aggregates in `columns`, of rows by the columns `by`; `Uncombinable` if one is of another kind."""
    made = frame.groupBy(*map(quoted, by)).agg(*columns)
    for field in made.schema.fields[: len(by)]:
        if field.dataType.typeName() not in KEYS and field.dataType.simpleString() not in KEYS:
            raise Uncombinable(f"by={field.name!r}, which is of type {field.dataType.simpleString()}")
    node = made._jdf.queryExecution().analyzed()  # Spark offers no other way to an expression
    if node.nodeName() != "Aggregate":
        raise Uncombinable("aggregates of more than one step")
    found = _items(node.aggregateExpressions())[len(by) :]
    values = _Values(frame)
    measures = tuple(_measure(expression, values) for expression in found)
    return Aggregates(
        measures=measures,
        values=values.columns,
        fields=tuple(made.schema.fields),
        sources=None if None in values.sources else tuple(filter(None, values.sources)),
    )


class _Values:
    """The columns of values: one for each expression, however many aggregates are over it."""

    def __init__(self, frame: DataFrame) -> None:
        context: Any = frame.sparkSession.sparkContext
        self._to_column = context._jvm.org.apache.spark.sql.classic.ExpressionUtils.column
        self._names: dict[str, str] = {}
        self.columns: dict[str, Column] = {}
        self.sources: list[Value | None] = []

    def name(self, expression: Any, kind: Kind) -> str:
        """The name of the column that an aggregate of this kind needs."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
        from pyspark.sql.classic.column import Column

        target = "presence" if kind == "count" else _number_type(expression)
        key = f"{target} {expression.canonicalized().toString()}"
        if key not in self._names:
            self._names[key] = f"_headrace_value{len(self._names)}"
            column = Column(self._to_column(expression))
            value = F.when(column.isNotNull(), F.lit(1)) if kind == "count" else column
            self.columns[self._names[key]] = value.cast("bigint" if kind == "count" else target)
            is_plain = expression.nodeName() == "AttributeReference"
            source = (
                Value(name=self._names[key], field=str(expression.name()), type=target) if is_plain else None
            )
            self.sources.append(source)
        return self._names[key]


def _number_type(expression: Any) -> str:
    kind = expression.dataType().catalogString()
    if kind not in NUMBERS:
        raise Uncombinable(f"{expression.sql()}, which is of type {kind}")
    return NUMBERS[kind]


def _measure(expression: Any, values: _Values) -> Measure:
    aggregate = expression.child() if expression.nodeName() == "Alias" else expression
    if (
        aggregate.nodeName() != "AggregateExpression"
        or aggregate.isDistinct()
        or aggregate.filter().isDefined()
    ):
        raise Uncombinable(aggregate.sql())
    function = aggregate.aggregateFunction()
    kind = KINDS.get(function.getClass().getSimpleName())
    inputs = _items(function.children())
    if kind is None or (kind == "count" and len(inputs) != 1):
        raise Uncombinable(aggregate.sql())
    (over,) = inputs
    if kind == "count" and not over.nullable():
        return Measure(name=expression.name(), kind=kind)
    return Measure(name=expression.name(), kind=kind, column=values.name(over, kind))


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]
