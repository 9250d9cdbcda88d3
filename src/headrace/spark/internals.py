"""Spark's private parts: logical plans, expressions and executions, which are Java objects behind Py4J.

No other module reaches into Spark's JVM for a query. What is used here is no public API of Spark's, so it may
change with any release: `TESTED` names the versions that the tests have run with.

A *placeholder* is a streaming relation that stands for the rows of a logical node. Users and operators build
their DataFrames over placeholders, and `substitute` puts the rows in their place:

```text
 Filter (amount > 3)                        Filter (amount > 3)
 └─ placeholder 7 [amount#2, at#3]   ──▶    └─ Project [column0#34 AS amount#2, column1#35 AS at#3]
                                               └─ the plan of node 7 [column0#34, column1#35]
```
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

TESTED: Final = ("4.3.0",)
"""The versions of Spark that these parts were tested with."""
PLACEHOLDER: Final = "placeholder"
"""The option of a streaming relation that stands for a logical node: the number of the node."""

WORDS: Final = {
    "Aggregate": "aggregation",
    "Join": "join",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication within the watermark",
    "GlobalLimit": "limit",
    "Distinct": "deduplication",
    "FlatMapGroupsWithState": "state of groups",
    "FlatMapGroupsInPandasWithState": "state of groups",
    "TransformWithState": "state of groups",
    "TransformWithStateInPySpark": "state of groups",
    "TransformWithStateInPandas": "state of groups",
}
"""The nodes of a plan that keep state when their input is a stream, and what people call them."""
WATERMARK: Final = "spark.watermarkDelayMs"
"""The note that Spark makes on a column with a watermark."""
NOWHERE: Final = -1
"""The number of a placeholder that stands for no node: only its columns are of use."""
SOURCE: Final = "StreamingRelationV2"
PYTHON_STEP: Final = re.compile("Python|Pandas|Arrow")
"""The names of nodes whose input goes to a Python process."""
FIXED_SIZES: Final = frozenset(
    [
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
"""Types whose values all take the same room."""
DROPPED: Final = "numRowsDroppedByWatermark"
"""Spark's name for the number of rows, or of groups of rows, that an operator dropped as late."""
IDENTITY: Final = re.compile(r"#\d+L?")
"""Numbers of columns, which differ from one run to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOperator:
    """A stateful operator of Spark's own."""

    kind: str
    """In words: aggregation, join, deduplication, limit, or Spark's own name."""
    keys: tuple[str, ...] = ()
    """What the state is kept by, with types: "product string"."""
    holds: tuple[str, ...] = ()
    """What is kept for each key."""
    details: str = ""
    """Definitions behind the keys: compared, but too long to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStep:
    """A node of Spark's logical plan, as far as the planner has to know it."""

    kind: str
    """Spark's name of it."""
    inputs: tuple[SparkStep, ...] = ()
    node: int | None = None
    """The logical node that it stands for, if it is a placeholder."""
    keeps_state: bool = False
    renumbers: bool = False
    """Whether its tasks have other numbers than those of its input: a union, or a coalesce."""
    shuffles: bool = False

    def walk(self) -> Iterator[SparkStep]:
        """This step, and all those that its rows come from."""
        yield self
        for each in self.inputs:
            yield from each.walk()


def steps_of(frame: DataFrame) -> SparkStep:
    """The steps of a DataFrame, from the last one back to its placeholders and sources."""
    return _step(analyzed_plan(frame))


def _step(node: Any) -> SparkStep:
    kind = str(node.nodeName())
    is_coalesce = kind == "Repartition" and not node.shuffle()
    return SparkStep(
        kind=kind,
        inputs=tuple(map(_step, inputs_of(node))),
        node=placeholder_of(node),
        keeps_state=keeps_state(node),
        renumbers=kind == "Union" or is_coalesce,
        shuffles=kind == "RepartitionByExpression" or (kind == "Repartition" and not is_coalesce),
    )


def placeholder(spark: SparkSession, number: int, schema: StructType) -> DataFrame:
    """A streaming DataFrame of these columns that stands for a logical node."""
    from pyspark.sql.types import StructField, StructType

    # A column may be null whatever its origin says: what takes its place is not known yet.
    fields = [StructField(field.name, field.dataType, metadata=field.metadata) for field in schema]
    reader = spark.readStream.format("headrace").schema(StructType(fields))
    return reader.option(PLACEHOLDER, str(number)).load()


def placeholder_of(node: Any) -> int | None:
    """The number of the logical node that a node of a plan stands for."""
    number = node.extraOptions().get(PLACEHOLDER) if node.nodeName() == SOURCE else None
    return None if number is None else int(number)


def substitute(frame: DataFrame, planned: Callable[[int], DataFrame]) -> DataFrame:
    """The DataFrame with the rows of logical nodes in the place of their placeholders."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    plan = analyzed_plan(frame)
    made = _substituted(frame.sparkSession, plan, planned)
    if made is plan:
        return frame
    session: Any = frame.sparkSession
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, made)
    return ClassicDataFrame(dataset, frame.sparkSession)


def _substituted(spark: SparkSession, plan: Any, planned: Callable[[int], DataFrame]) -> Any:
    number = placeholder_of(plan)
    if number is not None:
        return _renamed(spark, plan, analyzed_plan(planned(number)))
    children = inputs_of(plan)
    made = [_substituted(spark, child, planned) for child in children]
    if all(new is old for new, old in zip(made, children, strict=True)):
        return plan
    if plan.nodeName() == "WithCTE" and not any(child.isStreaming() for child in made):
        made = [_as_batch(spark, child) for child in made]
    return with_children(spark, plan, made)


def _renamed(spark: SparkSession, old: Any, new: Any) -> Any:
    """The plan `new` with the columns of `old`: their names, numbers and metadata."""
    catalyst, option = jvm_of(spark).org.apache.spark.sql.catalyst, jvm_of(spark).scala.Option
    nothing = _sequence(spark, [])
    columns = [
        catalyst.expressions.Alias(
            made, wanted.name(), wanted.exprId(), wanted.qualifier(), option.apply(wanted.metadata()), nothing
        )
        for wanted, made in zip(items_of(old.output()), items_of(new.output()), strict=True)
    ]
    return catalyst.plans.logical.Project(_sequence(spark, columns), new)


def _as_batch(spark: SparkSession, plan: Any) -> Any:
    """The plan with references to common table expressions that are no streams."""
    if plan.nodeName() == "CTERelationRef":
        arguments = [plan.productElement(position) for position in range(plan.productArity())]
        names = [plan.productElementName(position) for position in range(plan.productArity())]
        arguments[names.index("isStreaming")] = False
        return plan.makeCopy(array_of(jvm_of(spark).java.lang.Object, arguments))
    children = inputs_of(plan)
    if not children:
        return plan
    return with_children(spark, plan, [_as_batch(spark, child) for child in children])


def with_children(spark: SparkSession, node: Any, children: list[Any]) -> Any:
    """A node of a plan, or an expression, with other children."""
    return node.withNewChildren(_sequence(spark, children))


def column_of(spark: SparkSession, expression: Any) -> Column:
    """An expression as a column of PySpark's."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(jvm_of(spark).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def expression_of(spark: SparkSession, column: Column) -> Any:
    """The expression of a column of PySpark's."""
    of: Any = column
    return jvm_of(spark).org.apache.spark.sql.classic.ExpressionUtils.expression(of._jc)


def arrow_aggregate(function: Callable[..., Any], name: str, result: str) -> Callable[..., Column]:
    """An aggregate function in Python over Arrow arrays, with a name that plans show."""
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    return UserDefinedFunction(
        function, result, name=name, evalType=PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF
    ).__call__


def function_of(expression: Any) -> Any:
    """The function in Python that an expression calls."""
    from pyspark.serializers import CPickleSerializer

    # Spark has no other place for it: the expression has the function as bytes.
    pickle: Any = CPickleSerializer()
    function, _ = pickle.loads(bytes(expression.func().command().unsafeArray()))
    return function


_HAS_METHOD: Final[dict[tuple[str, str], bool]] = {}
"""Whether a class of Java has a method of this name; classes do not change."""


def has_method(target: Any, method: str) -> bool:
    """Whether a Java object has a method of this name; Py4J itself answers yes to every name."""
    if not hasattr(target, "getClass"):
        return False
    java_class = target.getClass()
    question = (str(java_class.getName()), method)
    if question not in _HAS_METHOD:  # each method of the class is a call into Java
        _HAS_METHOD[question] = any(str(one.getName()) == method for one in java_class.getMethods())
    return _HAS_METHOD[question]


def _sequence(spark: SparkSession, items: list[Any]) -> Any:
    made = jvm_of(spark).java.util.ArrayList()
    for item in items:
        made.add(item)
    return jvm_of(spark).org.apache.spark.api.python.PythonUtils.toSeq(made)


def input_topics(rows: DataFrame) -> tuple[str, ...]:
    """The topics in the order in which the checkpoint keeps their offsets; placeholders have none."""
    nodes = nodes_of(analyzed_plan(rows))
    sources = (node for node in nodes if node.nodeName() == SOURCE and placeholder_of(node) is None)
    topics = (source.extraOptions().get("subscribe") or source.sourceName() for source in sources)
    return tuple(dict.fromkeys(str(topic) for topic in topics))


def stateful_operators(rows: DataFrame) -> tuple[SparkOperator, ...]:
    """The steps that keep state, from the last one back to the sources."""
    return tuple(_operator(node) for node in nodes_of(analyzed_plan(rows)) if keeps_state(node))


def groups_by_event_time(rows: DataFrame) -> bool:
    """Whether an aggregation has event time among its keys, so that its groups are closed at some time."""
    nodes = (
        node for node in nodes_of(analyzed_plan(rows)) if node.nodeName() == "Aggregate" and keeps_state(node)
    )
    return any(_is_event_time(key) for node in nodes for key in items_of(node.groupingExpressions()))


def gives_python_fixed_sizes(rows: DataFrame) -> bool:
    """Whether these rows, and what goes to steps in Python before them, have columns of fixed sizes alone.

    Texts, bytes and what has parts are of any size. Functions that are parts of expressions are not looked
    into: a plan with one of them is taken to have such columns.
    """
    if not _has_fixed_size(analyzed_plan(rows)):
        return False
    function = jvm_of(rows.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    for node in nodes_of(analyzed_plan(rows)):
        if PYTHON_STEP.search(node.nodeName()):
            if not all(_has_fixed_size(child) for child in items_of(node.children())):
                return False
        elif any(expression.containsPattern(function) for expression in items_of(node.expressions())):
            return False
    return True


def _has_fixed_size(node: Any) -> bool:
    types = [field.dataType().typeName() for field in node.schema().fields()]
    return all(name.partition("(")[0] in FIXED_SIZES for name in types)


def _is_event_time(key: Any) -> bool:
    """Whether a column bears a watermark: the question by which Spark itself allows to append groups."""
    return key.nodeName() in ("AttributeReference", "Alias") and key.metadata().contains(WATERMARK)


def analyzed_plan(rows: DataFrame) -> Any:
    """The plan of a DataFrame as Spark has understood it, a Java object."""
    return rows._jdf.queryExecution().analyzed()  # Spark offers no other way to a plan


def nodes_of(node: Any) -> Iterator[Any]:
    """A node of a plan, and all those that its rows come from."""
    yield node
    for child in inputs_of(node):
        yield from nodes_of(child)


def inputs_of(node: Any) -> list[Any]:
    """The nodes that a node's rows come from."""
    return items_of(node.children())


def items_of(sequence: Any) -> list[Any]:
    """The items of a sequence of Scala's."""
    return [sequence.apply(position) for position in range(sequence.size())]


def keeps_state(node: Any) -> bool:
    """Whether a node of a plan is a step of Spark's that keeps state."""
    if node.nodeName() not in WORDS or not node.isStreaming():
        return False
    # A join of a stream with a table that does not change keeps nothing.
    return all(child.isStreaming() for child in items_of(node.children()))


def _operator(node: Any) -> SparkOperator:
    kind = WORDS[node.nodeName()]
    match node.nodeName():
        case "Aggregate":
            return _aggregation(kind, node)
        case "Join":
            sides = tuple(child.schema().catalogString() for child in items_of(node.children()))
            condition = node.condition().get().sql() if node.condition().isDefined() else ""
            return SparkOperator(
                kind=f"{node.joinType().sql().lower()} {kind}", keys=(condition,), holds=sides
            )
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return SparkOperator(kind=kind, keys=_columns(node.keys()))
        case "GlobalLimit" | "Distinct":
            return SparkOperator(kind=kind, holds=(node.schema().catalogString(),))
        case _:
            return SparkOperator(kind=kind, keys=_columns(node.groupingAttributes()))


def _aggregation(kind: str, node: Any) -> SparkOperator:
    keys = _columns(node.groupingExpressions())
    values = [_unnamed(expression) for expression in items_of(node.aggregateExpressions())]
    holds = tuple(value for value in _texts(values) if value not in keys)
    return SparkOperator(kind=kind, keys=keys, holds=holds, details=_definitions(node))


def _columns(expressions: Any) -> tuple[str, ...]:
    return _texts(items_of(expressions))


def _texts(expressions: list[Any]) -> tuple[str, ...]:
    return tuple(f"{expression.sql()} {expression.dataType().catalogString()}" for expression in expressions)


def _unnamed(expression: Any) -> Any:
    """An expression without the name of its column, which may change freely."""
    return expression.child() if expression.nodeName() == "Alias" else expression


def _definitions(node: Any) -> str:
    """How the columns that the step right below makes for the keys are computed: windows above all."""
    (child,) = items_of(node.children())
    while child.nodeName() in ("Filter", "SubqueryAlias"):
        (child,) = items_of(child.children())
    wanted = {
        key.exprId().id()
        for key in items_of(node.groupingExpressions())
        if key.nodeName() == "AttributeReference"
    }
    made = [expression.sql() for expression in _made(child, wanted)]
    return IDENTITY.sub("", "; ".join(made))


def _made(node: Any, wanted: set[int]) -> list[Any]:
    """The expressions by which a step makes the columns with these numbers."""
    if node.nodeName() == "Project":
        made = [column for column in items_of(node.projectList()) if column.nodeName() == "Alias"]
        return [column for column in made if column.exprId().id() in wanted]
    if node.nodeName() != "Expand":
        return []
    # A row of a window that overlaps others is multiplied: one projection for each of its windows.
    places = [place for place, column in enumerate(items_of(node.output())) if column.exprId().id() in wanted]
    return [projection.apply(place) for projection in items_of(node.projections()) for place in places]


def observed_metric(spark: SparkSession, name: str) -> int | None:
    """The value of an observed metric in the batch that this thread has computed just now."""
    from headrace.spark.transactional_batch import QUERY_ID

    query = spark.sparkContext.getLocalProperty(QUERY_ID)
    session: Any = spark._jsparkSession
    found = session.streams().get(query).streamingQuery().lastExecution().observedMetrics().get(name)
    return None if found.isEmpty() or found.get().isNullAt(0) else int(found.get().getLong(0))


def dropped_rows(execution: Any) -> int:
    """How many rows, or groups of rows, operators of Spark's dropped as late in the execution of a batch."""
    return sum(_dropped(node) for node in nodes_of(execution.executedPlan()))


def _dropped(node: Any) -> int:
    metric = node.metrics().get(DROPPED)
    return int(metric.get().value()) if metric.isDefined() else 0


def observed_counts(execution: Any, prefix: str) -> dict[str, tuple[int, int]]:
    """The first two values of the observed metrics that begin with `prefix`, by the rest of their names."""
    metrics = execution.observedMetrics()
    keys, names = metrics.keys().iterator(), []
    while keys.hasNext():
        names.append(str(keys.next()))
    rows = {name.removeprefix(prefix): metrics.apply(name) for name in names if name.startswith(prefix)}
    return {name: (int(row.getLong(0)), int(row.getLong(1))) for name, row in rows.items()}


def execution_of(query: StreamingQuery) -> Any:
    """The Java object that runs a query; its `lastExecution` is the newest batch."""
    java: Any = query
    return java._jsq.streamingQuery()


def await_termination(query: StreamingQuery, most_ms: int) -> None:
    """Return when the query has ended, or after so long."""
    java: Any = query
    java._jsq.awaitTermination(most_ms)


def progress_after(query: StreamingQuery, batch: int) -> list[dict[str, Any]]:
    """The progress of the batches after this one, oldest first."""
    java: Any = query
    recent = java._jsq.recentProgress()  # its Python form would bring all hundred each time
    fresh = []
    for position in range(len(recent) - 1, -1, -1):
        if recent[position].batchId() <= batch:
            break
        fresh.append(json.loads(recent[position].json()))
    return fresh[::-1]


def run_job(rows: DataFrame) -> None:
    """Run the plan of `rows` for its side effects, without collecting its rows."""
    java: Any = rows
    execution = java._jdf.queryExecution()
    plan = execution.logical()
    # Spark passes a planned query to `foreachBatch`: planning it again takes 20 ms.
    (plan.rdd() if plan.nodeName() == "LogicalRDD" else execution.toRdd()).count()


def set_active_session(session: SparkSession) -> None:
    """Make a session the active one of this thread in the JVM."""
    getattr(jvm_of(session), "org.apache.spark.sql.classic.SparkSession").setActiveSession(
        session._jsparkSession
    )


def jvm_of(session: SparkSession) -> Any:
    """The JVM of a session, as Py4J shows it."""
    return session.sparkContext._jvm


def java_context_of(context: SparkContext) -> Any:
    """The context of Spark in the JVM."""
    return context._jsc


def hadoop() -> tuple[Any, Any]:
    """The JVM of this process, started if necessary, and Hadoop's settings in it."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is not None:
        return session.sparkContext._jvm, session._jsparkSession.sessionState().newHadoopConf()
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    return jvm, jvm.org.apache.hadoop.conf.Configuration()


def array_of(kind: Any, items: list[Any]) -> Any:
    """An array of Java's."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    array = gateway.new_array(kind, len(items))
    for position, item in enumerate(items):
        array[position] = item
    return array
