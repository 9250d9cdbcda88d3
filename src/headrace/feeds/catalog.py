"""The catalog of views: the compacted topic `headrace.views` with one partition, keyed by view name.

    revenue → {"topic": "revenue", "key": ["product"], "schema": {"type": "struct", …}, "job": "shop.revenue"}

A job writes the entry of its view when it starts, before the first row. Readers find the key and the columns
here, without the program that writes the view.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.client.fetch import read_records, skip_unreadable
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError, Misuse
from headrace.protocol.records import NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.cluster import Cluster


TOPIC: Final = "headrace.views"
PARTITION: Final = TopicPartition(TOPIC, 0)
_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(2 << 20)}

logger = logging.getLogger(__name__)


class UnknownView(HeadraceError):
    """A view that does not exist."""


class InvalidToken(Misuse):
    """A string that is not a token of this view's feed."""


class TokenExpired(HeadraceError):
    """The log no longer holds all changes after a token: the feed must start again with the current rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDescription:
    """A view as the catalog describes it."""

    name: str
    topic: str
    key: tuple[str, ...]
    schema: Mapping[str, Any]
    """The columns as a Spark StructType in JSON."""
    job: str
    """The application and the job that write it: `shop.revenue`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field["name"] for field in self.schema["fields"])


def register_view(cluster: Cluster, entry: ViewDescription) -> None:
    """Add a view to the catalog, unless the same entry exists."""
    if TOPIC not in cluster.topics((TOPIC,)):
        create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs=_CONFIGS)])
    if read_views(cluster).get(entry.name) == entry:
        return
    fields = {"topic": entry.topic, "key": entry.key, "schema": entry.schema, "job": entry.job}
    record = NewRecord(entry.name.encode(), json.dumps(fields).encode(), time.time_ns() // 1_000_000)
    producer = BatchProducer(cluster)
    producer.send(PARTITION, encode_batch([record]))
    producer.flush()


def read_views(cluster: Cluster) -> dict[str, ViewDescription]:
    """The views by name, in alphabetical order.

    A record that describes no view is skipped with a warning: an older entry of its name stays.
    """
    if TOPIC not in cluster.topics((TOPIC,)):
        return {}
    newest: dict[str, ViewDescription | None] = {}
    start, end = (list_offsets(cluster, {PARTITION: which})[PARTITION] for which in (EARLIEST, LATEST))
    for record in skip_unreadable(read_records(cluster, PARTITION, start, end)):
        name = (record.key or b"").decode(errors="replace")
        try:
            newest[name] = None if record.value is None else _entry(name, record.value)
        except (ValueError, KeyError, TypeError) as fault:
            logger.warning(
                "skipped offset %d of %s: it describes no view (%r). Only Headrace may write to that topic.",
                record.offset,
                TOPIC,
                fault,
            )
    return {name: entry for name, entry in sorted(newest.items()) if entry is not None}


def find_view(cluster: Cluster, name: str) -> ViewDescription:
    """The view of that name, or an error that lists the existing views."""
    views = read_views(cluster)
    if name in views:
        return views[name]
    known = ", ".join(views) or "none yet"
    raise UnknownView(
        f"the view {name!r} does not exist (existing views: {known}). A view exists once a job with "
        f"into=app.view({name!r}, key=…) has started."
    )


def _entry(name: str, value: bytes) -> ViewDescription:
    fields = json.loads(value)
    columns = {field["name"]: field["type"] for field in fields["schema"]["fields"]}
    if not columns.keys() >= set(fields["key"]):
        raise ValueError("its key names columns that it does not have")
    return ViewDescription(
        name=name,
        topic=fields["topic"],
        key=tuple(fields["key"]),
        schema=fields["schema"],
        job=fields["job"],
    )
