"""Where a job's rows go: topics, views, and sinks, one or several of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from headrace.client.topics import NewTopic
from headrace.errors import Misuse
from headrace.sinks.sink import Sink
from headrace.streams.run_context import PARTITIONS
from headrace.streams.topic import Topic
from headrace.streams.view import View, mode_of_replacing_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.streams.rows import OutputMode


@dataclass(frozen=True, slots=True)
class OutputTargets:
    """The outputs of one job: the same rows go to each of them."""

    topics: tuple[Topic, ...]
    sinks: tuple[Sink, ...] = ()

    @staticmethod
    def of(given: Any) -> OutputTargets:
        """What a user gave as `into=`: a topic, a view, a sink, or several of them in a list."""
        outputs = list(given) if isinstance(given, list | tuple) else [given]
        unknown = [output for output in outputs if not isinstance(output, Topic | Sink)]
        if unknown or not outputs:
            what = f"into={unknown[0] if unknown else given!r}"
            raise Misuse(
                f"{what}: a job writes into a topic, a view or a sink, or a list of them: into=app.topic(…), "
                'into=[app.view(…), postgres("revenue", key=…)].'
            )
        names = [output.name for output in outputs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Misuse(f"into=…: {twice[0]!r} is there twice: a job writes into each of its outputs once.")
        return OutputTargets(
            tuple(output for output in outputs if isinstance(output, Topic)),
            tuple(output for output in outputs if not isinstance(output, Topic)),
        )

    @property
    def name(self) -> str:
        """The names of all, for people."""
        return ", ".join([*(topic.name for topic in self.topics), *(sink.name for sink in self.sinks)])

    @property
    def is_one_topic(self) -> bool:
        """Whether the rows have one reader, which encodes them as they are computed."""
        return len(self.topics) == 1 and not self.sinks

    @property
    def views(self) -> tuple[View, ...]:
        """Those of the topics whose rows replace one another."""
        return tuple(topic for topic in self.topics if isinstance(topic, View))

    def new_topics(self) -> list[NewTopic]:
        """The topics, as they are to be if they have to be made."""
        return [
            NewTopic(name=topic.name, partitions=topic.partitions or PARTITIONS, configs=topic.config)
            for topic in self.topics
        ]

    def mode_for(self, rows: DataFrame) -> OutputMode:
        """How rows are written that do not say it themselves: as changes, where one output wants that."""
        modes: list[OutputMode] = [topic.mode_for(rows) for topic in self.topics]
        if self.sinks:
            modes.append(mode_of_replacing_rows(rows))
        return "update" if "update" in modes else "append"

    def records(self, rows: DataFrame) -> DataFrame:
        """The rows as records of all topics, each with the topic that it goes to."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        parts = [topic.records(rows).withColumn("topic", F.lit(topic.name)) for topic in self.topics]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
