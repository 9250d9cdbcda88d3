"""The environment of a measurement: a broker, the programs of the systems, and the readings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from bench.readings import Readings, round_to
from bench.spark.plan import Plan
from bench.spark.spark_program import SparkProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One broker and one warm program for each system; only one of them works at any time."""

    bootstrap: str
    plan: Plan
    cores: int
    programs: Sequence[SparkProgram]
    readings: Readings
    progress: Console

    def turns(self, rounds: int) -> Iterator[tuple[int, SparkProgram]]:
        """The programs in turn, round by round; round 0 is the warm-up. Each round begins with another."""
        for number in range(rounds + 1):
            shift = number % len(self.programs)
            for program in [*self.programs[shift:], *self.programs[:shift]]:
                yield number, program

    def read(self, system: str, measure: str, cell: str, values: Mapping[str, float]) -> None:
        """Note one round of a row: `values` by their units."""
        for unit, value in values.items():
            self.readings.add(measure=measure, cell=cell, unit=unit, system=system, value=value)
        said = ", ".join(f"{round_to(value):,g} {unit}" for unit, value in values.items())
        self.progress.log(f"{measure} · {cell} · {system}: {said}")
