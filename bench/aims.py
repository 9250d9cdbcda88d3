"""Performance targets, evaluated against the readings of a run."""

from dataclasses import dataclass
from typing import Any

from bench.readings import Readings, round_to

TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A target for one row: `system` must reach a limit, absolute or as a ratio to `against`.

    Exactly one of `at_least` and `at_most` is set.
    """

    measure: str
    cell: str
    unit: str
    system: str = "headrace"
    against: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def limit(self) -> str:
        """The limit in words, such as "≥ 1.4× kafka" or "≤ 1 ms"."""
        sign, number = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        unit = f"{TIMES} {self.against}" if self.against else f" {self.unit}"
        return f"{sign} {number:g}{unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result for a target: the measured figure, or None if it was not measured."""

    aim: Aim
    figure: float | None

    @property
    def word(self) -> str:
        """ "reached", "missed" or "not measured"."""
        if self.figure is None:
            return "not measured"
        aim = self.aim
        kept = self.figure >= aim.at_least if aim.at_least is not None else self.figure <= (aim.at_most or 0)
        return "reached" if kept else "missed"

    def as_json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        row = {"measure": self.aim.measure, "cell": self.aim.cell, "unit": self.aim.unit}
        figure = None if self.figure is None else round_to(self.figure)
        return {**row, "aim": self.aim.limit, "figure": figure, "verdict": self.word}


def judge(aim: Aim, readings: Readings) -> Verdict:
    """Evaluate one target."""
    figure = _median(readings, aim, aim.system)
    if aim.against is not None and figure is not None:
        base = _median(readings, aim, aim.against)
        figure = figure / base if base else None
    return Verdict(aim=aim, figure=figure)


def _median(readings: Readings, aim: Aim, system: str) -> float | None:
    reading = readings.find(aim.measure, aim.cell, aim.unit, system)
    return reading.median if reading else None
