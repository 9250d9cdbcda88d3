"""The environment of trials: a broker, the plan, and the readings and notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.console import Console

from bench.readings import Readings, round_to
from bench.streams.plan import Plan
from bench.streams.results import Results
from bench.streams.works import Work
from bench.topics import PARTITIONS, delete_topic, new_topic
from headrace.client.cluster import Cluster

FOREVER = {"retention.ms": "-1"}
"""Records have times of long ago."""


class Note(NamedTuple):
    """A note on a row in addition to its figure: missing rows, or a program that failed."""

    system: str
    cell: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One broker; only one program works at any time."""

    bootstrap: str
    cluster: Cluster
    plan: Plan
    cores: int
    readings: Readings
    progress: Console
    notes: list[Note] = field(default_factory=list)
    tried: set[tuple[str, str]] = field(default_factory=set)
    """The rows that were measured, or should have been: systems and cells."""

    def make_topics(self, *roles: str) -> dict[str, str]:
        """New topics, by the role of each."""
        return {role: new_topic(self.bootstrap, config=FOREVER) for role in roles}

    def delete_topics(self, topics: Mapping[str, str]) -> None:
        """Delete topics."""
        for name in topics.values():
            delete_topic(self.bootstrap, name)

    def results(self, topic: str, partitions: int = PARTITIONS) -> Results:
        """A topic that a program writes into."""
        return Results(self.cluster, self.bootstrap, topic, partitions)

    def read(self, system: str, work: Work, values: Mapping[str, float]) -> None:
        """Add the figures of a row: `values` by unit."""
        for unit, value in values.items():
            self.readings.add(measure=work.measure, cell=work.cell, unit=unit, system=system, value=value)
        said = ", ".join(f"{round_to(value):,g} {unit}" for unit, value in values.items())
        self.progress.log(f"{work.measure} · {work.cell} · {system}: {said}")

    def note(self, system: str, work: Work, text: str) -> None:
        """Add a note on a row."""
        self.notes.append(Note(system, work.cell, text))
        self.progress.log(f"{work.measure} · {work.cell} · {system}: {text}")
