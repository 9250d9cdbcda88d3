"""The offsets of captures: records in a compacted topic, written in the transaction that they describe."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.capture.settings import slot_name
from headrace.capture.source import CaptureError
from headrace.client.cluster import Cluster
from headrace.client.fetch import UnreadableRecords, read_records
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOPIC: Final = "headrace.captures"
STOP: Final = "/stop"
"""The suffix of a capture's name in the key of a stop request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedSnapshot:
    """A completed snapshot of a table."""

    topic: str
    position: int
    """The position of the snapshot: it contains every transaction that committed before."""
    key: tuple[str, ...]
    """The key columns of the table's records; empty if the records have no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOffset:
    """The position in the database's log up to which a capture has committed its records."""

    name: str
    address: str
    """The database without its password, for display. No command connects to it: anyone who can write the
    topic could redirect an operator's password to another server."""
    system: str
    """The system identifier and the name of the database, which a copy at the same address does not have."""
    position: int
    """The end LSN of the last committed transaction; 0 before the slot exists."""
    time_ms: int = 0
    """The highest timestamp of a record so far; timestamps never decrease."""
    tables: Mapping[str, CompletedSnapshot] = field(default_factory=dict)
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic and partition: the offset after the records and the marker of the last transaction.

    Together these offsets hold whole transactions of the database.
    """

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_name(self.name)

    def with_ends(self, ends: Mapping[TopicPartition, int]) -> Self:
        """A copy with the ends of these partitions."""
        merged = {topic: dict(partitions) for topic, partitions in self.ends.items()}
        for (topic, partition), end in ends.items():
            merged.setdefault(topic, {})[str(partition)] = end
        return replace(self, ends=merged)

    def with_table(self, name: str, table: CompletedSnapshot) -> Self:
        """A copy with one more completed snapshot."""
        return replace(self, tables={**self.tables, name: table})

    def to_bytes(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """Decode a record's value."""
        try:
            document: dict[str, Any] = json.loads(value)
            tables = {
                name: CompletedSnapshot(**{**table, "key": tuple(table["key"])})
                for name, table in document.pop("tables").items()
            }
            return cls(**document, tables=tables)
        except (ValueError, TypeError, KeyError) as fault:
            raise CaptureError(
                f"a record in {TOPIC!r} is not the offset of a capture ({fault}). Delete the record, or "
                "drop the capture."
            ) from fault


def create_offsets_topic(cluster: Cluster) -> None:
    """Create the topic of offsets if it does not exist."""
    create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs={"cleanup.policy": "compact"})])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCaptures:
    """The contents of the topic of offsets."""

    captures: Mapping[str, CaptureOffset]
    stopped: frozenset[str]
    """The names of captures with a stop request."""


def read_offsets(bootstrap: str) -> KnownCaptures:
    """Read the offset of every capture of this broker."""
    newest = read_latest_records(bootstrap, TOPIC)
    names = {key.decode(): value for key, value in newest.items()}
    return KnownCaptures(
        captures={
            name: replace(CaptureOffset.from_bytes(value), name=name)
            for name, value in names.items()
            if not name.endswith(STOP)
        },
        stopped=frozenset(name.removesuffix(STOP) for name in names if name.endswith(STOP)),
    )


def read_latest_records(bootstrap: str, topic: str) -> dict[bytes, bytes]:
    """The latest committed value of each key, without deleted keys; empty if the topic does not exist."""
    newest: dict[bytes, bytes] = {}
    with Cluster.of(bootstrap) as cluster:
        for partition, end in _ends(cluster, topic).items():
            for key, value in _keyed_records(cluster, partition, 0, end):
                if value is None:
                    newest.pop(key, None)
                else:
                    newest[key] = value
    return newest


def live_keys(bootstrap: str, topic: str) -> set[bytes]:
    """The keys whose latest record has a value, including records of the caller's open transaction.

    Only for a topic with a single writer: everything after the last stable offset counts as the caller's.
    """
    live: set[bytes] = set()
    with Cluster.of(bootstrap) as cluster:
        ends = _ends(cluster, topic, read_committed=False)
        for partition, stable in _ends(cluster, topic).items():
            committed = _keyed_records(cluster, partition, 0, stable)
            opened = _keyed_records(cluster, partition, stable, ends[partition], read_committed=False)
            for key, value in itertools.chain(committed, opened):
                if value is None:
                    live.discard(key)
                else:
                    live.add(key)
    return live


def _ends(cluster: Cluster, topic: str, *, read_committed: bool = True) -> dict[TopicPartition, int]:
    """The end offset of each partition; none if the topic does not exist."""
    found = cluster.topics([topic])
    partitions = [TopicPartition(topic, number) for number in found[topic].partitions] if found else []
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=read_committed)


def _keyed_records(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool = True
) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of the records that have a key."""
    (first,) = list_offsets(cluster, {partition: EARLIEST}).values()
    for record in read_records(cluster, partition, max(first, start), end, read_committed=read_committed):
        if isinstance(record, UnreadableRecords):
            raise CaptureError(f"{record}. Delete the records, or drop the capture.")
        if record.key is not None:
            yield record.key, record.value
