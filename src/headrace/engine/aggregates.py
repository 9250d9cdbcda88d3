"""The aggregates of a window or sliding window, read from the expressions that users wrote.

Spark analyzes the expressions. Each aggregate function in them becomes an `AggregateSpec`, which an operator
computes, and what is left of an expression (`F.sum("a") / F.count("*")`) is evaluated by Spark over the
results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import ceil
from operator import and_
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DecimalType, LongType, StructField, _parse_datatype_json_string

from headrace.columns.aggregates import AggregateSpec
from headrace.columns.user_aggregates import UserAggregate
from headrace.engine.columns import quoted
from headrace.errors import Misuse
from headrace.spark.aggregate_pushdown import TIME, Value
from headrace.spark.internals import (
    analyzed_plan,
    arrow_aggregate,
    column_of,
    expression_of,
    function_of,
    has_method,
    items_of,
    with_children,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from headrace.columns.aggregates import Kind

NUMBERS: Final = {
    "tinyint": "bigint",
    "smallint": "bigint",
    "int": "bigint",
    "bigint": "bigint",
    "float": "double",
    "double": "double",
}
"""The types of values that can be computed with, and as what they are."""
SIMPLE: Final = frozenset(
    {*NUMBERS, "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "decimal"}
)
"""The types that can be keys and that have an order, by the names of their classes or of themselves."""
SUPPORTED: Final = (
    "count, sum, avg, min, max, stddev, variance, count_distinct, approx_count_distinct, first, last, "
    "min_by, max_by, collect_list, collect_set, percentile, percentile_approx, median, bool_and, bool_or, "
    "count_if and any_value, by columns of simple types, and classes that extend headrace.Aggregator"
)
RESULT: Final = "_headrace_aggregate"
VALUE: Final = "_headrace_value"
_NUMERIC: Final[Mapping[str, Kind]] = {"Sum": "sum", "Average": "mean", "Min": "min", "Max": "max"}
_VARIANCES: Final[Mapping[str, Kind]] = {
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp",
    "VariancePop": "var_pop",
}


class UnsupportedAggregate(Misuse):
    """An aggregate that operators do not compute; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregates:
    """What is to be computed of some rows."""

    specs: tuple[AggregateSpec, ...]
    values: Mapping[str, Column]
    """The columns that the aggregates are over, by the names that they have there."""
    computed: tuple[StructField, ...]
    """The keys and what an operator computes as columns, with Spark's types."""
    results: tuple[Column, ...]
    """The columns of the result after the keys, by those; empty where they are the same."""
    sources: tuple[Value, ...] | None
    """The values as they are in the rows; None where one of them is computed."""


def user_aggregate(function: Any, name: str, result: str, columns: Sequence[str | Column]) -> Column:
    """An aggregate of a user's own class as a column; `function` has its `aggregator` and `state` type.

    Spark can compute it too: it calls the function with the rows of a group.
    """
    return arrow_aggregate(function, name, result)(*columns)


def read_aggregates(
    frame: DataFrame, by: Sequence[str], columns: Sequence[Column], *, time: str = TIME
) -> Aggregates:
    """The aggregates in `columns`, of rows by the columns `by`; `UnsupportedAggregate` if one is not known.

    `time` is the name of the column of event times, by which `first`, `last` and `collect_list` are ordered.
    """
    made = frame.groupBy(*map(quoted, by)).agg(*columns)
    for key in made.schema.fields[: len(by)]:
        if not _is_simple(key.dataType.typeName(), key.dataType.simpleString()):
            raise UnsupportedAggregate(f"by={key.name!r}, which is of type {key.dataType.simpleString()}")
    node = analyzed_plan(made)
    if node.nodeName() != "Aggregate":
        raise UnsupportedAggregate("aggregates of more than one step")
    reader = _Reader(frame, time)
    results = [reader.result(expression) for expression in items_of(node.aggregateExpressions())[len(by) :]]
    keys, outputs = made.schema.fields[: len(by)], made.schema.fields[len(by) :]
    specs = tuple(reader.specs)
    if reader.is_direct:
        specs = tuple(replace(spec, name=output.name) for spec, output in zip(specs, outputs, strict=True))
        computed, results = outputs, []
    else:
        computed = [StructField(spec.name, kind) for spec, kind in zip(specs, reader.types, strict=True)]
    return Aggregates(
        specs=specs,
        values=reader.values,
        computed=(*keys, *computed),
        results=tuple(
            result.alias(output.name) for result, output in zip(results, outputs, strict=not reader.is_direct)
        ),
        sources=None if None in reader.sources else tuple(filter(None, reader.sources)),
    )


def evaluated(
    frame: DataFrame, by: Sequence[str], columns: Sequence[Column], aggregates: Aggregates
) -> tuple[DataFrame, ...]:
    """All that can fail in a row: the aggregates by key, without windows.

    Spark computes no aggregate in Python together with others, so classes of users are evaluated one by one.
    """
    users = [spec.user for spec in aggregates.specs if spec.user is not None]
    keys = [*map(quoted, by)]
    if not users:
        return (frame.groupBy(*keys).agg(*columns),)
    values = frame.select(*keys, *(column.alias(name) for name, column in aggregates.values.items()))
    each = (user.aggregator(*map(quoted, user.columns)) for user in users)
    return (values, *(values.groupBy(*keys).agg(column) for column in each))


class _Reader:
    """Collects the aggregate functions of some expressions, and the columns that they are over."""

    def __init__(self, frame: DataFrame, time: str) -> None:
        self._spark = frame.sparkSession
        self._time = time
        self.specs: list[AggregateSpec] = []
        self.types: list[DataType] = []
        self.values: dict[str, Column] = {}
        self.sources: list[Value | None] = []
        self.is_direct = True
        """Whether each expression is one aggregate function and nothing else."""

    def result(self, expression: Any) -> Column:
        """An expression over the results of its aggregate functions."""
        inner = expression.child() if expression.nodeName() == "Alias" else expression
        if inner.nodeName() != "AggregateExpression":
            self.is_direct = False
        return self._column(self._rewritten(inner))

    def _rewritten(self, expression: Any) -> Any:
        """The expression with the columns of results in place of its aggregate functions."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        kind = expression.nodeName()
        if kind == "AggregateExpression":
            return self._expression(self._aggregate(expression))
        if kind == "AttributeReference":  # a key
            return self._expression(F.col(quoted(str(expression.name()))))
        children = items_of(expression.children())
        if not children:
            return expression
        return with_children(self._spark, expression, [self._rewritten(child) for child in children])

    def _aggregate(self, expression: Any) -> Column:
        """The column of the result of an aggregate function."""
        function = expression.aggregateFunction()
        while has_method(function, "replacement"):
            function = function.replacement()
        call = _Call(expression, function)
        for read in (self._count, self._number, self._variance, self._choice, self._list, self._user):
            column = read(call)
            if column is not None:
                return column
        raise call.unsupported

    def _add(self, call: _Call, kind: Kind, value: str | None, **more: Any) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        name = f"{RESULT}{len(self.specs)}"
        self.specs.append(AggregateSpec(name=name, kind=kind, column=value, **more))
        self.types.append(call.type if kind != "count" else LongType())
        return F.col(name)

    def _count(self, call: _Call) -> Column | None:
        if call.name != "Count":
            return None
        if call.is_distinct:
            return self._add(call, "count_distinct", self._distinct_value(call))
        if len(call.inputs) != 1:
            raise call.unsupported
        if not call.inputs[0].nullable() and call.condition is None:
            return self._add(call, "count", None)
        return self._add(call, "count", self._value(call, call.inputs[0], "presence"))

    def _distinct_value(self, call: _Call) -> str:
        """One value for several columns: null if one of them is, as for Spark's count."""
        from pyspark.sql import functions as F  # noqa: N812

        if len(call.inputs) == 1:
            return self._value(call, call.simple_input(0), "")
        columns = [self._column(one) for one in call.inputs]
        are_there = reduce(and_, (column.isNotNull() for column in columns))
        together = F.when(are_there, F.to_json(F.struct(*columns)))
        return self._named(call, ", ".join(str(one.sql()) for one in call.inputs), together)

    def _number(self, call: _Call) -> Column | None:
        kind = _NUMERIC.get(call.name)
        if kind is None:
            return None
        of = call.inputs[0].dataType().catalogString()
        if of in NUMBERS and not call.is_distinct_sum:
            return self._add(call, kind, self._value(call, call.inputs[0], NUMBERS[of]))
        if call.name in ("Min", "Max"):
            value = self._value(call, call.simple_input(0), "")
            return self._add(call, "least" if call.name == "Min" else "greatest", value)
        if not of.startswith("decimal") or call.is_distinct_sum:
            raise call.unsupported
        return self._decimal(call)

    def _decimal(self, call: _Call) -> Column:
        total = self._add(call, "decimal_sum", self._value(call, call.inputs[0], ""))
        if call.name == "Sum":
            return total
        self.is_direct = False
        scale = call.inputs[0].dataType().scale()
        self.types[-1] = DecimalType(38, scale)
        count = self._add(call, "count", self._value(call, call.inputs[0], "presence"))
        return (total / count).cast(call.type)

    def _variance(self, call: _Call) -> Column | None:
        kind = _VARIANCES.get(call.name)
        if kind is None or call.is_distinct:
            return None
        return self._add(call, kind, self._value(call, call.inputs[0], "double"))

    def _choice(self, call: _Call) -> Column | None:
        if call.name in ("MinBy", "MaxBy"):
            kind: Kind = "min_by" if call.name == "MinBy" else "max_by"
            value = self._value(call, call.inputs[0], "")
            return self._add(call, kind, value, order=self._value(call, call.simple_input(1), ""))
        if call.name not in ("First", "Last"):
            return None
        skips_nulls = call.function.ignoreNulls()
        if call.condition is not None and not skips_nulls:
            raise call.unsupported
        kinds: tuple[Kind, Kind] = ("first", "last") if skips_nulls else ("first_value", "last_value")
        value = self._value(call, call.inputs[0], "")
        return self._add(call, kinds[call.name == "Last"], value, order=self._time)

    def _list(self, call: _Call) -> Column | None:
        readers: Mapping[str, Callable[[_Call], Column]] = {
            "CollectList": lambda call: self._add(
                call, "collect_list", self._value(call, call.inputs[0], ""), order=self._time
            ),
            "CollectSet": lambda call: self._add(
                call, "collect_set", self._value(call, call.simple_input(0), "")
            ),
            "HyperLogLogPlusPlus": self._approximate_count,
            "Percentile": lambda call: self._percentile(call, "percentile", "double"),
            "ApproximatePercentile": lambda call: self._percentile(call, "percentile_disc", ""),
        }
        if call.name not in readers or (call.is_distinct and call.name != "CollectSet"):
            return None
        return readers[call.name](call)

    def _approximate_count(self, call: _Call) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        over = self._column(call.inputs[0])
        hashed = F.when(over.isNotNull(), F.xxhash64(over))
        # The smallest k of n hashes tell n with a relative standard deviation of 1 / sqrt(k - 2).
        kept = ceil(call.function.relativeSD() ** -2) + 2
        value = self._named(call, f"xxhash64({call.inputs[0].sql()})", hashed)
        return self._add(call, "approx_count_distinct", value, arguments=(float(kept),))

    def _percentile(self, call: _Call, kind: Kind, target: str) -> Column:
        is_plain = kind == "percentile_disc" or (
            not call.function.reverse() and str(call.inputs[2].toString()) == "1"
        )
        if not is_plain or not call.inputs[1].foldable():
            raise call.unsupported
        given = call.inputs[1].eval(None)
        shares = tuple(given.toDoubleArray()) if has_method(given, "toDoubleArray") else (float(given),)
        value = self._value(call, call.simple_input(0), target)
        return self._add(call, kind, value, arguments=shares)

    def _user(self, call: _Call) -> Column | None:
        if call.name != "PythonUDAF":
            return None
        function = function_of(call.function)
        if not hasattr(function, "aggregator"):
            raise UnsupportedAggregate(f"{call.sql}, a function in Python that is no headrace.Aggregator")
        columns = tuple(self._value(call, each, "") for each in call.inputs)
        user = UserAggregate(
            name=function.aggregator.name,
            columns=columns,
            state=to_arrow_type(function.state, timezone="UTC"),
            result=to_arrow_type(call.type, timezone="UTC"),
            aggregator=function.aggregator,
        )
        return self._add(call, "user", None, user=user)

    def _value(self, call: _Call, expression: Any, target: str) -> str:
        """The name of the column of values that an expression gives, of type `target` if it is not empty."""
        from pyspark.sql import functions as F  # noqa: N812

        natural = NUMBERS.get(str(expression.dataType().catalogString()), "")
        target = target or natural
        column, text = self._column(expression), str(expression.sql())
        if target == "presence":
            column, text = F.when(column.isNotNull(), F.lit(1)).cast("bigint"), f"{text} IS NOT NULL"
        elif target:
            column = column.cast(target)
            text = text if target == natural else f"CAST({text} AS {target})"
        is_plain = expression.nodeName() == "AttributeReference" and call.condition is None
        field = str(expression.name()) if is_plain else None
        return self._named(call, text, column, field, target)

    def _named(
        self, call: _Call, text: str, column: Column, field: str | None = None, target: str = ""
    ) -> str:
        """The name of a column of values: it names the state, so that it is the same in every run.

        Where the condition of the aggregate (`FILTER (WHERE …)`) does not hold, the column is null.
        """
        from pyspark.sql import functions as F  # noqa: N812

        if call.condition is not None:
            column = F.when(self._column(call.condition), column)
            text = f"{text} WHERE {call.condition.sql()}"
        name = f"{VALUE} {text}"
        if name not in self.values:
            self.values[name] = column
            self.sources.append(None if field is None else Value(name=name, field=field, type=target))
        return name

    def _column(self, expression: Any) -> Column:
        return column_of(self._spark, expression)

    def _expression(self, column: Column) -> Any:
        return expression_of(self._spark, column)


class _Call:
    """An aggregate function in an expression."""

    def __init__(self, expression: Any, function: Any) -> None:
        self.function = function
        self.name = str(function.getClass().getSimpleName())
        self.inputs = items_of(function.children())
        self.is_distinct = bool(expression.isDistinct())
        self.condition = expression.filter().get() if expression.filter().isDefined() else None
        self.sql = str(expression.sql())

    @property
    def type(self) -> DataType:
        """The type of the result."""
        return _parse_datatype_json_string(self.function.dataType().json())

    @property
    def is_distinct_sum(self) -> bool:
        """Whether values count once: for min and max that makes no difference."""
        return self.is_distinct and self.name in ("Sum", "Average")

    @property
    def unsupported(self) -> UnsupportedAggregate:
        """The error for a function that is not known, or not with these arguments."""
        return UnsupportedAggregate(self.sql)

    def simple_input(self, number: int) -> Any:
        """An argument whose values have an order."""
        found = self.inputs[number]
        of = found.dataType()
        if not _is_simple(str(of.typeName()), str(of.catalogString())):
            raise UnsupportedAggregate(f"{self.sql} of type {of.catalogString()}")
        return found


def _is_simple(name: str, text: str) -> bool:
    return name.partition("(")[0] in SIMPLE or text in SIMPLE
