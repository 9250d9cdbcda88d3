"""How far each capture is: a record in a compacted topic, written in the transaction that it speaks of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.capture.errors import CaptureError
from headrace.capture.settings import slot_of
from headrace.client.topics import NewTopic, create_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.cluster import Cluster

TOPIC: Final = "headrace.captures"
STOP: Final = "/stop"
"""Behind the name of a capture: the key of a request to stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableProgress:
    """A table whose snapshot is in its topic."""

    topic: str
    position: int
    """Of the snapshot: transactions that committed before it are in it."""
    key: tuple[str, ...]
    """The columns that the keys of its records are made of; none where they have no keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Up to where a capture has written its database's log."""

    name: str
    address: str
    """The database, without password, for people. It is never connected to: whoever may write the topic could
    have an operator's password sent to a server of their own."""
    system: str
    """What tells this database from a copy or another one under the same address."""
    position: int
    """The end of the last transaction that is in the log; 0 while there is no slot yet."""
    time_ms: int = 0
    """The newest time of a record: later ones are not older."""
    tables: Mapping[str, TableProgress] = field(default_factory=dict)

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication."""
        return slot_of(self.name)

    def with_table(self, name: str, table: TableProgress) -> Self:
        """The same with one more table whose snapshot is taken."""
        return replace(self, tables={**self.tables, name: table})

    def to_bytes(self) -> bytes:
        """The record's value."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Self:
        """A record's value read back."""
        try:
            document: dict[str, Any] = json.loads(value)
            tables = {
                name: TableProgress(**{**table, "key": tuple(table["key"])})
                for name, table in document.pop("tables").items()
            }
            return cls(**document, tables=tables)
        except (ValueError, TypeError, KeyError) as fault:
            raise CaptureError(
                f"a record in {TOPIC!r} is not the progress of a capture ({fault}): who wrote it?"
            ) from fault


def make_topic(cluster: Cluster) -> None:
    """See to it that there is a topic for progress."""
    create_topics(cluster, [NewTopic(name=TOPIC, partitions=1, configs={"cleanup.policy": "compact"})])


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the topic says."""

    captures: Mapping[str, Progress]
    stopped: frozenset[str]
    """The names of captures that were asked to stop."""


def read_progress(bootstrap: str) -> Known:
    """The progress of every capture that is known, by name."""
    from headrace.capture.reading import newest_records

    newest = newest_records(bootstrap, TOPIC)
    names = {key.decode(): value for key, value in newest.items()}
    return Known(
        captures={
            name: replace(Progress.from_bytes(value), name=name)
            for name, value in names.items()
            if not name.endswith(STOP)
        },
        stopped=frozenset(name.removesuffix(STOP) for name in names if name.endswith(STOP)),
    )
