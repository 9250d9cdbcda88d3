"""The graph of the whole system: sources, topics, jobs, readers and outputs, drawn from what runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from headrace.client.errors import RequestRefused
from headrace.console import groups, jobs, topics, views
from headrace.gateway.errors import UNAUTHORIZED_CODES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.console.app import Context

MAX_NODES: Final = 400
Found = TypeVar("Found")


@dataclass(slots=True)
class SystemGraph:
    """Nodes by their ids, and the edges between them in the direction of the records."""

    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def node(self, kind: str, name: str, **more: Any) -> str:
        """The id of a node, which is added if it is new."""
        node_id = f"{kind}:{name}"
        self.nodes.setdefault(node_id, {"id": node_id, "kind": kind, "name": name}).update(more)
        return node_id

    def edge(self, source: str, target: str, **more: Any) -> None:
        """Add an edge."""
        self.edges.setdefault((source, target), {"from": source, "to": target}).update(more)


def read_graph(context: Context) -> dict[str, Any]:
    """All that has a connection; topics that nothing reads or writes are only counted."""
    graph = SystemGraph()
    found = {each["topic"]: each for each in topics.list_topics(context)["topics"]}
    nothing: dict[str, Any] = {}
    running = _visible(lambda: jobs.read_jobs(context), nothing)
    _add_jobs(graph, running)
    _add_captures(graph, context)
    _add_aggregates(graph, context)
    shown = {name for name, each in found.items() if each["kind"] != "internal"}
    _add_groups(graph, context, set(running), shown)
    for name in shown:
        if f"topic:{name}" in graph.nodes:
            graph.node("topic", name, end=found[name]["end"], records=found[name]["records"])
    nodes = list(graph.nodes.values())[:MAX_NODES]
    ids = {node["id"] for node in nodes}
    edges = [edge for (source, target), edge in graph.edges.items() if source in ids and target in ids]
    stores = tuple(f"{node['name']}." for node in nodes if node["kind"] == "aggregate")
    alone = (
        name
        for name in shown
        if f"topic:{name}" not in ids
        and found[name]["kind"] != "dead letters"
        and not name.startswith(stores or ("\0",))
    )
    return {
        "nodes": nodes,
        "edges": edges,
        "unconnected": sorted(alone)[:MAX_NODES],
    }


def _visible(read: Callable[[], Found], otherwise: Found) -> Found:
    """What `read` returns, or `otherwise` if the user may not see it: the graph then lacks it."""
    try:
        return read()
    except RequestRefused as refusal:
        if refusal.code.value not in UNAUTHORIZED_CODES:
            raise
        return otherwise


def _add_jobs(graph: SystemGraph, running: dict[str, dict[str, Any]]) -> None:
    for name, job in running.items():
        node = graph.node(
            "job",
            name,
            state=job["state"],
            rate=job.get("rows_per_second"),
            lag=job.get("lag"),
            title=job["job"],
        )
        for topic in job["inputs"]:
            graph.edge(graph.node("topic", topic), node)
        if job.get("late_topic"):
            graph.edge(node, graph.node("topic", job["late_topic"]))
        for output in job["outputs"]:
            if output["kind"] == "sink":
                graph.edge(node, graph.node("sink", output["name"]))
                continue
            target = graph.node("topic", output["name"])
            if output["kind"] == "view":
                graph.nodes[target]["view"] = True
            graph.edge(node, target)


def _add_captures(graph: SystemGraph, context: Context) -> None:
    nothing: dict[str, Any] = {"captures": []}
    captures = _visible(lambda: jobs.list_captures(context), nothing)
    for capture in captures["captures"]:
        status = capture["status"]
        node = graph.node(
            "database",
            capture["database"],
            title=capture["capture"],
            state=None if status is None else status["state"],
        )
        for topic in capture["tables"].values():
            graph.edge(node, graph.node("topic", topic))


def _add_aggregates(graph: SystemGraph, context: Context) -> None:
    for aggregate in views.list_aggregates(context)["aggregates"]:
        name = aggregate["aggregate"]
        graph.edge(graph.node("aggregate", name), graph.node("topic", f"{name}.events"))


def _add_groups(graph: SystemGraph, context: Context, running: set[str], shown: set[str]) -> None:
    """Consumer groups and queues. Groups of jobs are the jobs themselves, those of handlers aggregates."""
    for group in groups.list_groups(context)["groups"]:
        name = group["group"]
        if name in running or name.startswith(("headrace-", "headrace.")) or name.endswith(".handlers"):
            continue
        for topic in group["topics"]:
            if topic in shown:
                node = graph.node("group", name, lag=group["lag"], members=group["members"])
                graph.edge(graph.node("topic", topic), node)
    from headrace.console.cluster import read_features

    if not read_features(context.session)["share_groups"]:
        return
    for queue in groups.list_queues(context)["queues"]:
        node = graph.node("queue", queue.group, lag=queue.left, members=queue.members, dead=queue.dead)
        graph.edge(graph.node("topic", queue.topic), node)
