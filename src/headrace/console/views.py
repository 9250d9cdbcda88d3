"""Views, and aggregates with their events and their state at any version.

The rows of views and their changes are resources of the gateway: `/views/{view}` and `/changes/{view}`.
"""

from __future__ import annotations

import threading
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from headrace.client.fetch import fetch_batches
from headrace.errors import Misuse
from headrace.feeds.catalog import read_views
from headrace.gateway.errors import HttpError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.console.app import Context
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.event import RecordedEvent
    from headrace.events.topics import StoreTopics

MAX_EVENTS: Final = 500


def list_views(context: Context) -> dict[str, Any]:
    """The views with their keys, columns and jobs."""
    return {
        "views": [
            {
                "view": view.name,
                "topic": view.topic,
                "key": view.key,
                "columns": [
                    {"name": field["name"], "type": _type_text(field["type"])}
                    for field in view.schema["fields"]
                ],
                "job": view.job,
            }
            for view in read_views(context.session.cluster).values()
        ]
    }


def _type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", "struct"))


def list_aggregates(context: Context) -> dict[str, Any]:
    """The classes of aggregates that have events."""
    from headrace.events.topics import offset_ranges, stores, topic_partitions

    cluster = context.session.cluster
    found = []
    for name in stores(cluster):
        topics = _topics(context, name)
        ranges = offset_ranges(cluster, topic_partitions(topics.events, topics.partitions))
        found.append(
            {
                "aggregate": name,
                "events": sum(end - first for first, end in ranges.values()),
                "partitions": topics.partitions,
                "state": context.programs.find(name.rpartition(".")[2]) is not None,
            }
        )
    return {"aggregates": found}


def read_events(context: Context) -> dict[str, Any]:
    """The events of one aggregate (`id`), or the newest events of all."""
    topics = _topics(context, context.path["aggregate"])
    key = context.query.get("id") or None
    limit = max(1, context.number("limit", 100, MAX_EVENTS))
    recorded = _newest_events(context, topics, limit) if key is None else _events_of(context, topics, key)
    shown = recorded[-limit:] if key is not None else recorded[:limit]
    return {"id": key, "total": len(recorded), "events": [_event(each) for each in shown]}


def _events_of(context: Context, topics: StoreTopics, key: str) -> list[RecordedEvent]:
    from headrace.events.history import read_history

    found = list(read_history(context.session.cluster, topics, key))
    if not found:
        raise HttpError(HTTPStatus.NOT_FOUND, f"there are no events of {topics.aggregate} {key!r}")
    return found


def _newest_events(context: Context, topics: StoreTopics, limit: int) -> list[RecordedEvent]:
    from headrace.client.fetch import UnreadableRecords, committed_records
    from headrace.events.errors import UnreadableEvent
    from headrace.events.event import read_event
    from headrace.events.topics import offset_ranges, topic_partitions

    cluster = context.session.cluster
    ranges = offset_ranges(cluster, topic_partitions(topics.events, topics.partitions))
    newest: deque[RecordedEvent] = deque()
    for partition, (first, end) in ranges.items():
        at = max(first, end - limit * 2)  # half of the offsets may be marks of transactions
        while at < end:
            fetched = fetch_batches(cluster, {partition: at}, max_wait_ms=100)
            if not fetched:
                break
            for part in fetched:
                for record in committed_records(partition, part.batches, part.aborted):
                    if isinstance(record, UnreadableRecords) or record.offset < at:
                        continue
                    try:
                        event = read_event(
                            topics.aggregate, partition.partition, record.offset, record.timestamp,
                            record.key, record.value, record.headers,
                        )  # fmt: skip
                    except UnreadableEvent:
                        continue
                    newest.append(event)
                at = part.next_offset
    return sorted(newest, key=lambda event: (event.time, event.version), reverse=True)


def read_state(context: Context) -> dict[str, Any]:
    """The state of one aggregate after a version, with what each of its events changed."""
    from headrace.events.cache import plain_state
    from headrace.events.history import history_steps, read_events, rebuild

    name, key = context.path["aggregate"], context.query.get("id", "")
    schema = context.programs.find(name.rpartition(".")[2])
    if schema is None:
        raise HttpError(
            HTTPStatus.CONFLICT,
            f"the class {name.rpartition('.')[2]} is not known: start the console with "
            "--program FILE.py, the file that defines it",
        )
    topics, cluster = _topics(context, name), context.session.cluster
    version = context.number("version", 0, (1 << 53) - 1) if context.query.get("version") else None
    found = rebuild(cluster, topics, schema, key, version=version)
    steps = deque(history_steps(schema, key, read_events(cluster, topics, key)), maxlen=MAX_EVENTS)
    return {
        "id": key,
        "version": found.version,
        "newest": steps[-1].recorded.version if steps else 0,
        "state": plain_state(schema, found),
        "steps": [
            {
                **_event(step.recorded),
                "changes": [[each.path, _known(each.before), _known(each.after)] for each in step.changes],
            }
            for step in steps
        ],
    }


def _known(value: Any) -> Any:
    from headrace.events.history import ABSENT

    return None if value is ABSENT else value


def _event(recorded: RecordedEvent) -> dict[str, Any]:
    return {
        "id": recorded.id,
        "version": recorded.version,
        "time": recorded.time,
        "type": recorded.type,
        "fields": recorded.fields,
        "actor": recorded.actor,
        "command_id": recorded.command_id,
    }


def _topics(context: Context, name: str) -> StoreTopics:
    from headrace.events.topics import find_topics

    store, _, aggregate = name.rpartition(".")
    return find_topics(context.session.cluster, store, aggregate)


class Programs:
    """The aggregate classes of Python files, loaded when they are first needed."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._schemas: dict[str, AggregateSchema | None] = {}

    def find(self, aggregate: str) -> AggregateSchema | None:
        """The class of that name; None if no file defines it."""
        with self._lock:
            if aggregate not in self._schemas:
                self._schemas[aggregate] = self._load(aggregate)
            return self._schemas[aggregate]

    def _load(self, aggregate: str) -> AggregateSchema | None:
        from headrace.events.aggregate import load_aggregate

        for file in self._files:
            try:
                return load_aggregate(file, aggregate)
            except Misuse:  # another file may define it
                continue
        return None
