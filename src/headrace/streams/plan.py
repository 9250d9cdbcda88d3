"""The outline of a streaming DataFrame: what it reads and what it keeps, taken from Spark's analysed plan."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from headrace.streams.description import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

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
IDENTITY: Final = re.compile(r"#\d+L?")
"""Numbers of columns, which differ from one run to the next."""


def input_topics(rows: DataFrame) -> tuple[str, ...]:
    """The topics in the order in which the checkpoint keeps their offsets."""
    sources = (node for node in nodes_of(analysed_plan(rows)) if node.nodeName() == SOURCE)
    topics = (source.extraOptions().get("subscribe") or source.sourceName() for source in sources)
    return tuple(dict.fromkeys(str(topic) for topic in topics))


def stateful_operators(rows: DataFrame) -> tuple[Operator, ...]:
    """The steps that keep state, from the last one back to the sources."""
    return tuple(_operator(node) for node in nodes_of(analysed_plan(rows)) if keeps_state(node))


def groups_by_event_time(rows: DataFrame) -> bool:
    """Whether an aggregation has event time among its keys, so that its groups are closed at some time."""
    nodes = (
        node for node in nodes_of(analysed_plan(rows)) if node.nodeName() == "Aggregate" and keeps_state(node)
    )
    return any(_is_event_time(key) for node in nodes for key in _items(node.groupingExpressions()))


def gives_python_fixed_sizes(rows: DataFrame) -> bool:
    """Whether these rows, and what goes to steps in Python before them, have columns of fixed sizes alone.

    Texts, bytes and what has parts are of any size. Functions that are parts of expressions are not looked
    into: a plan with one of them is taken to have such columns.
    """
    if not _has_fixed_size(analysed_plan(rows)):
        return False
    java: Any = rows.sparkSession.sparkContext._jvm
    function = java.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    for node in nodes_of(analysed_plan(rows)):
        if PYTHON_STEP.search(node.nodeName()):
            if not all(_has_fixed_size(child) for child in _items(node.children())):
                return False
        elif any(expression.containsPattern(function) for expression in _items(node.expressions())):
            return False
    return True


def _has_fixed_size(node: Any) -> bool:
    types = [field.dataType().typeName() for field in node.schema().fields()]
    return all(name.partition("(")[0] in FIXED_SIZES for name in types)


def _is_event_time(key: Any) -> bool:
    """Whether a column bears a watermark: the question by which Spark itself allows to append groups."""
    return key.nodeName() in ("AttributeReference", "Alias") and key.metadata().contains(WATERMARK)


def analysed_plan(rows: DataFrame) -> Any:
    """The plan of a DataFrame as Spark has understood it, a Java object."""
    return rows._jdf.queryExecution().analyzed()  # Spark offers no other way to a plan


def nodes_of(node: Any) -> Iterator[Any]:
    """A node of a plan, and all those that its rows come from."""
    yield node
    for child in inputs_of(node):
        yield from nodes_of(child)


def inputs_of(node: Any) -> list[Any]:
    """The nodes that a node's rows come from."""
    return _items(node.children())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def keeps_state(node: Any) -> bool:
    """Whether a node of a plan is a step of Spark's that keeps state."""
    if node.nodeName() not in WORDS or not node.isStreaming():
        return False
    # A join of a stream with a table that does not change keeps nothing.
    return all(child.isStreaming() for child in _items(node.children()))


def _operator(node: Any) -> Operator:
    kind = WORDS[node.nodeName()]
    match node.nodeName():
        case "Aggregate":
            return _aggregation(kind, node)
        case "Join":
            sides = tuple(child.schema().catalogString() for child in _items(node.children()))
            condition = node.condition().get().sql() if node.condition().isDefined() else ""
            return Operator(kind=f"{node.joinType().sql().lower()} {kind}", keys=(condition,), holds=sides)
        case "Deduplicate" | "DeduplicateWithinWatermark":
            return Operator(kind=kind, keys=_columns(node.keys()))
        case "GlobalLimit" | "Distinct":
            return Operator(kind=kind, holds=(node.schema().catalogString(),))
        case _:
            return Operator(kind=kind, keys=_columns(node.groupingAttributes()))


def _aggregation(kind: str, node: Any) -> Operator:
    keys = _columns(node.groupingExpressions())
    values = [_unnamed(expression) for expression in _items(node.aggregateExpressions())]
    holds = tuple(value for value in _texts(values) if value not in keys)
    return Operator(kind=kind, keys=keys, holds=holds, details=_definitions(node))


def _columns(expressions: Any) -> tuple[str, ...]:
    return _texts(_items(expressions))


def _texts(expressions: list[Any]) -> tuple[str, ...]:
    return tuple(f"{expression.sql()} {expression.dataType().catalogString()}" for expression in expressions)


def _unnamed(expression: Any) -> Any:
    """An expression without the name of its column, which may change freely."""
    return expression.child() if expression.nodeName() == "Alias" else expression


def _definitions(node: Any) -> str:
    """How the columns that the step right below makes for the keys are computed: windows above all."""
    (child,) = _items(node.children())
    while child.nodeName() in ("Filter", "SubqueryAlias"):
        (child,) = _items(child.children())
    wanted = {
        key.exprId().id()
        for key in _items(node.groupingExpressions())
        if key.nodeName() == "AttributeReference"
    }
    made = [expression.sql() for expression in _made(child, wanted)]
    return IDENTITY.sub("", "; ".join(made))


def _made(node: Any, wanted: set[int]) -> list[Any]:
    """The expressions by which a step makes the columns with these numbers."""
    if node.nodeName() == "Project":
        made = [column for column in _items(node.projectList()) if column.nodeName() == "Alias"]
        return [column for column in made if column.exprId().id() in wanted]
    if node.nodeName() != "Expand":
        return []
    # A row of a window that overlaps others is multiplied: one projection for each of its windows.
    places = [place for place, column in enumerate(_items(node.output())) if column.exprId().id() in wanted]
    return [projection.apply(place) for projection in _items(node.projections()) for place in places]
