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
IDENTITY: Final = re.compile(r"#\d+L?")
"""Numbers of columns, which differ from one run to the next."""


def input_topics(rows: DataFrame) -> tuple[str, ...]:
    """The topics in the order in which the checkpoint keeps their offsets."""
    sources = (node for node in _nodes(_analysed(rows)) if node.nodeName() == SOURCE)
    topics = (source.extraOptions().get("subscribe") or source.sourceName() for source in sources)
    return tuple(dict.fromkeys(str(topic) for topic in topics))


def stateful_operators(rows: DataFrame) -> tuple[Operator, ...]:
    """The steps that keep state, from the last one back to the sources."""
    return tuple(_operator(node) for node in _nodes(_analysed(rows)) if _keeps_state(node))


def groups_by_event_time(rows: DataFrame) -> bool:
    """Whether an aggregation has event time among its keys, so that its groups are closed at some time."""
    nodes = (
        node for node in _nodes(_analysed(rows)) if node.nodeName() == "Aggregate" and _keeps_state(node)
    )
    return any(_is_event_time(key) for node in nodes for key in _items(node.groupingExpressions()))


def _is_event_time(key: Any) -> bool:
    """Whether a column bears a watermark: the question by which Spark itself allows to append groups."""
    return key.nodeName() in ("AttributeReference", "Alias") and key.metadata().contains(WATERMARK)


def _analysed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()  # Spark offers no other way to a plan


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(position) for position in range(sequence.size())]


def _keeps_state(node: Any) -> bool:
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
    """How columns that a projection right below makes for the keys are computed: windows above all."""
    (child,) = _items(node.children())
    while child.nodeName() in ("Filter", "SubqueryAlias"):
        (child,) = _items(child.children())
    if child.nodeName() != "Project":
        return ""
    wanted = {
        key.exprId().id()
        for key in _items(node.groupingExpressions())
        if key.nodeName() == "AttributeReference"
    }
    made = [column for column in _items(child.projectList()) if column.nodeName() == "Alias"]
    return IDENTITY.sub("", "; ".join(column.sql() for column in made if column.exprId().id() in wanted))
