"""Where jobs run: a Spark session, a broker, and folders for what they keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import Misuse
from headrace.streams.inputs import InputTopics
from headrace.streams.job_folder import JobFolder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.client.cluster import Cluster
    from headrace.engine.planner import Starts
    from headrace.streams.job import Job
    from headrace.streams.job_folder import StartPosition
    from headrace.tracing import Tracer

PARTITIONS: Final = 4
"""Of a topic that has to be made and of which nobody said how many it should have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the jobs of an application share."""

    spark: SparkSession
    bootstrap: str
    cluster: Cluster
    state: Path
    checkpoints: str | None = None
    """Where checkpoints are, if not in the state folder: a place that all machines of a cluster reach."""
    inputs: InputTopics = field(default_factory=InputTopics)
    """The topics that the application declares; those that its jobs read besides have to exist."""

    tracer: Tracer | None = None
    """Traces the batches of jobs; None without an endpoint."""

    def folder(self, job: Job) -> JobFolder:
        """The folder of a job."""
        return JobFolder.of(self.state, job.app, job.name, checkpoints=self.checkpoints)

    def provide(self, topics: Iterable[NewTopic]) -> None:
        """Make the topics that are not there."""
        create_topics(self.cluster, topics)

    def starts(self, topics: Iterable[str], beginning: StartPosition) -> Starts:
        """The offsets at which a job begins after a reset; nothing where each stream says it itself."""
        if beginning.kind == "stream":
            return {}
        described = self.cluster.topics(topics)
        partitions = [
            TopicPartition(topic.name, number) for topic in described.values() for number in topic.partitions
        ]
        starts: Starts = {}
        for partition, offset in self._offsets(partitions, beginning).items():
            starts.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return starts

    def _offsets(
        self, partitions: list[TopicPartition], beginning: StartPosition
    ) -> dict[TopicPartition, int]:
        first = list_offsets(self.cluster, dict.fromkeys(partitions, EARLIEST))
        if beginning.kind == "start":
            return first
        end = list_offsets(self.cluster, dict.fromkeys(partitions, LATEST))
        if beginning.kind == "end":
            return end
        if beginning.kind == "time":
            found = list_offsets(self.cluster, dict.fromkeys(partitions, beginning.value))
            return {
                partition: end[partition] if offset < 0 else offset for partition, offset in found.items()
            }
        for partition in partitions:
            _check_offset(partition, beginning.value, first[partition], end[partition])
        return dict.fromkeys(partitions, beginning.value)


def _check_offset(partition: TopicPartition, offset: int, first: int, end: int) -> None:
    if not first <= offset <= end:
        raise Misuse(
            f"the job was reset to offset {offset}, but partition {partition.partition} of "
            f"{partition.topic!r} holds {first} to {end}: reset it to an offset in between, to start, "
            "to end, or to a time."
        )
