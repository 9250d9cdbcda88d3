"""What a topic holds, read by our own client."""

import uuid

from headrace.client.cluster import Cluster
from headrace.client.fetch import read_records, skip_unreadable
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.protocol.records import Record


class TopicContent:
    """A new topic of its own."""

    def __init__(
        self, bootstrap: str, *, partitions: int = 1, name: str | None = None, **configs: str
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name or f"topic-{uuid.uuid4().hex[:10]}"
        self.partitions = partitions
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        with Cluster.of(bootstrap) as cluster:
            create_topics(cluster, [NewTopic(name=self.name, partitions=partitions, configs=settings)])

    @property
    def path(self) -> str:
        return f"/topics/{self.name}"

    def records(self) -> list[Record]:
        """The committed records, partition after partition."""
        return read_topic(self.bootstrap, self.name, self.partitions)

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]


def read_topic(bootstrap: str, name: str, partitions: int = 1) -> list[Record]:
    """The committed records of a topic."""
    found: list[Record] = []
    with Cluster.of(bootstrap) as cluster:
        for number in range(partitions):
            partition = TopicPartition(name, number)
            start, end = (list_offsets(cluster, {partition: at})[partition] for at in (EARLIEST, LATEST))
            found += skip_unreadable(read_records(cluster, partition, start, end))
    return found
