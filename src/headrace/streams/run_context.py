"""Where jobs run: a Spark session, a broker, folders for what they keep, and the topics that they read.

A misspelled topic must not become an empty one that a job reads forever. So an input topic is created only
where something says that it belongs to the application: another job writes it, or its stream or table is
declared with `partitions=`. Any other one has to exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError, Misuse, did_you_mean
from headrace.streams.job_folder import JobFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.client.cluster import Cluster
    from headrace.engine.planner import Starts
    from headrace.streams.app import App
    from headrace.streams.job import Job
    from headrace.streams.job_folder import StartPosition
    from headrace.tracing import Tracer

PARTITIONS: Final = 4
"""Of a topic that has to be made and of which nobody said how many it should have."""


class MissingTopic(HeadraceError):
    """A job reads a topic that does not exist and that the application does not declare."""


class NotCapturedYet(HeadraceError):
    """A job reads the topic of a table whose capture has not created it yet: this passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTopics:
    """What an application says about the topics that its jobs read."""

    declared: Mapping[str, NewTopic] = field(default_factory=dict)
    """The topics that are created where they do not exist."""
    captures: tuple[str, ...] = ()
    """The names of its captures, which begin the names of the topics that they create."""
    places: Mapping[str, str] = field(default_factory=dict)
    """By topic, the line of the user's code that declares its stream or table."""

    @staticmethod
    def of(app: App) -> InputTopics:
        """The topics of an application."""
        declared = {topic.name: topic for job in app.jobs for topic in _written_by(job)}
        for stream in app.streams:
            if stream.partitions is not None:
                declared.setdefault(stream.topic, NewTopic(name=stream.topic, partitions=stream.partitions))
        for table in app.tables:
            if table.partitions is not None:
                configs = {"cleanup.policy": "compact"}
                topic = NewTopic(name=table.topic, partitions=table.partitions, configs=configs)
                declared.setdefault(table.topic, topic)
        places = {stream.topic: stream.declared_at for stream in app.streams}
        places |= {table.topic: table.declared_at for table in app.tables}
        return InputTopics(
            declared=declared, captures=tuple(capture.name for capture in app.captures), places=places
        )

    def missing(self, cluster: Cluster, topics: Iterable[str]) -> list[NewTopic]:
        """Those of the topics that have to be created; an error if one must not be."""
        wanted = list(topics)
        existing = cluster.topics(wanted)
        missing = [topic for topic in wanted if topic not in existing]
        for topic in missing:
            if topic not in self.declared:
                raise self._error(topic, cluster.topics())
        return [self.declared[topic] for topic in missing]

    def _error(self, topic: str, existing: Iterable[str]) -> HeadraceError:
        if topic.startswith(tuple(f"{name}." for name in self.captures)):
            return NotCapturedYet(f"the topic {topic!r} does not exist yet: its capture creates it.")
        place = f" ({self.places[topic]})" if self.places.get(topic) else ""
        return MissingTopic(
            f"the topic {topic!r} does not exist.{did_you_mean(topic, existing)} Create it with "
            f"`headrace topic create {topic}`, or declare it with partitions=4 to have it created{place}."
        )


def _written_by(job: Job) -> list[NewTopic]:
    kept_aside = [job.dead_topic] if job.late_topic is None else [job.dead_topic, job.late_topic]
    return [*job.into.new_topics(), *(NewTopic(name=name, partitions=1) for name in kept_aside)]


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
