"""Which views there are: the compacted topic `headrace.views`, one partition, the view's name as key.

    revenue → {"topic": "revenue", "key": ["product"], "schema": {"type": "struct", …}, "job": "shop.revenue"}

A job writes the entry of its view when it starts, before the first row. Whoever reads a view finds its key
and its columns here, and needs nothing of the program that fills it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.client.fetch import PartitionReader
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError
from headrace.feeds.errors import UnknownView
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.records import NewRecord, decode_batch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.client.cluster import Cluster
    from headrace.protocol.records import Record

TOPIC: Final = "headrace.views"
PARTITION: Final = TopicPartition(TOPIC, 0)
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(2 << 20)}


class BadEntry(HeadraceError):
    """A record of the topic of views that describes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEntry:
    """What readers have to know about a view."""

    name: str
    topic: str
    key: tuple[str, ...]
    schema: Mapping[str, Any]
    """The columns, as Spark writes a StructType in JSON."""
    job: str
    """The application and the job that fill it: `shop.revenue`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field["name"] for field in self.schema["fields"])


def remember_view(cluster: Cluster, entry: ViewEntry) -> None:
    """Return when the entry is among the views; one that is there already is not written again."""
    if TOPIC not in cluster.topics((TOPIC,)):
        create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs=_CONFIGS)])
    if read_views(cluster).get(entry.name) == entry:
        return
    fields = {"topic": entry.topic, "key": entry.key, "schema": entry.schema, "job": entry.job}
    record = NewRecord(entry.name.encode(), json.dumps(fields).encode(), time.time_ns() // 1_000_000)
    producer = BatchProducer(cluster)
    producer.send(PARTITION, encode_batch([record]))
    producer.flush()


def read_views(cluster: Cluster) -> dict[str, ViewEntry]:
    """The views by name, in alphabetical order; nothing where no job has made one yet."""
    if TOPIC not in cluster.topics((TOPIC,)):
        return {}
    newest: dict[str, ViewEntry | None] = {}
    for record in _records(cluster):
        name = (record.key or b"").decode(errors="replace")
        newest[name] = None if record.value is None else _entry(name, record.value)
    return {name: entry for name, entry in sorted(newest.items()) if entry is not None}


def find_view(cluster: Cluster, name: str) -> ViewEntry:
    """The view of that name; an error that names the others where there is none."""
    views = read_views(cluster)
    if name in views:
        return views[name]
    known = ", ".join(views) or "none yet"
    raise UnknownView(
        f"there is no view named {name!r} here (there are: {known}). A view is there once a job that writes "
        f"into=app.view({name!r}, key=…) has been started."
    )


def _records(cluster: Cluster) -> Iterator[Record]:
    start, end = (list_offsets(cluster, {PARTITION: which})[PARTITION] for which in (EARLIEST, LATEST))
    for piece in PartitionReader(cluster, PARTITION, start, end):
        for batch in split_batches(piece.batches):
            if not read_header(batch).is_control:
                yield from decode_batch(batch)


def _entry(name: str, value: bytes) -> ViewEntry:
    try:
        fields = json.loads(value)
        return ViewEntry(
            name=name,
            topic=fields["topic"],
            key=tuple(fields["key"]),
            schema=fields["schema"],
            job=fields["job"],
        )
    except (ValueError, KeyError, TypeError) as fault:
        raise BadEntry(
            f"the record of {name!r} in {TOPIC} describes no view ({fault!r}): something else writes to that "
            "topic. Leave it to Headrace."
        ) from fault
