"""A view that is written by hand: keys and rows in transactions, as a job would write them."""

import json
import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from headrace.client.cluster import Cluster
from headrace.feeds.catalog import ViewDescription, register_view
from headrace.feeds.feed import Change, ChangeFeed

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "string", "nullable": True, "metadata": {}},
        {"name": "n", "type": "long", "nullable": True, "metadata": {}},
    ],
}
Step = tuple[str, int | None]
"""A key, and its new number; None deletes it."""


class ViewWriter:
    """A view with the columns id and n, keyed by id; the first letter of a key says its partition."""

    def __init__(
        self, bootstrap: str, *, partitions: int = 2, name: str | None = None, **config: str
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name or f"shelf-{uuid.uuid4().hex[:10]}"
        self.partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.create(**config)
        with Cluster.of(bootstrap) as cluster:
            entry = ViewDescription(
                name=self.name, topic=self.name, key=("id",), schema=SCHEMA, job="test.shelf"
            )
            register_view(cluster, entry)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": self.name, "log_level": 0}
        )
        self._producer.init_transactions(30)

    def create(self, **config: str) -> None:
        settings = {"cleanup.policy": "compact", **{key.replace("_", "."): config[key] for key in config}}
        topic = NewTopic(self.name, num_partitions=self.partitions, replication_factor=1, config=settings)
        self._admin.create_topics([topic])[self.name].result(100)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(100)

    def grow(self, partitions: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(100)
        self.partitions = partitions
        self._producer.list_topics(self.name, 30)  # so that it knows of them

    def begin(self, steps: Iterable[Step]) -> None:
        """Write in a transaction that stays open."""
        self._producer.begin_transaction()
        for key, number in steps:
            value = None if number is None else json.dumps({"id": key, "n": number}).encode()
            self._producer.produce(self.name, value, key.encode(), partition=self.partition_of(key))
        assert self._producer.flush(100) == 0

    def write(self, *steps: Step) -> None:
        self.begin(steps)
        self._producer.commit_transaction(30)

    def write_raw(self, key: str, value: bytes) -> None:
        """Write a value as it is, as another program might."""
        self._producer.begin_transaction()
        self._producer.produce(self.name, value, key.encode(), partition=self.partition_of(key))
        self._producer.commit_transaction(30)

    def abort(self, *steps: Step) -> None:
        self.begin(steps)
        self._producer.abort_transaction(30)

    def commit(self) -> None:
        self._producer.commit_transaction(30)

    def partition_of(self, key: str) -> int:
        return ord(key[0]) % self.partitions

    def feed(self, **options: Any) -> ChangeFeed:
        return ChangeFeed(self.name, self.bootstrap, **options)

    def changes(self, since: str | None = None) -> list[Change]:
        """All that a feed gives of what is there now."""
        return list(self.feed(since=since, follow=False))


def steps_of(changes: Iterable[Change]) -> list[tuple[str, str, int | None]]:
    """Kind, key and number of each change."""
    return [(change.kind, change.key["id"], change.row and change.row["n"]) for change in changes]


def state_after(changes: Iterable[Change]) -> dict[str, int]:
    """What a reader holds who applied the changes."""
    state = {}
    for kind, key, number in steps_of(changes):
        if number is None:
            assert kind == "delete"
            state.pop(key, None)
        else:
            state[key] = number
    return state
