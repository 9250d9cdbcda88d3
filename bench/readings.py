"""Readings: the measured values of each round, and the collection for reports."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SIGNIFICANT_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One figure of one system: the values of its rounds, in `unit`.

    `measure` names the table it stands in and `cell` the row: ("produce", "1 KiB, 1 partition, page cache").
    """

    measure: str
    cell: str
    unit: str
    system: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance from the lowest to the highest round, as a share of the median."""
        half = (max(self.values) - min(self.values)) / 2
        return half / self.median if self.median else 0.0


class Readings:
    """All readings of a run, in the order in which their rows first appeared."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str, str], list[float]] = {}

    def add(self, *, measure: str, cell: str, unit: str, system: str, value: float) -> None:
        """Add one round of a reading."""
        self._values.setdefault((measure, cell, unit, system), []).append(value)

    def find(self, measure: str, cell: str, unit: str, system: str) -> Reading | None:
        """The reading of that row and system, or None when it was not measured."""
        values = self._values.get((measure, cell, unit, system))
        if values is None:
            return None
        return Reading(measure=measure, cell=cell, unit=unit, system=system, values=tuple(values))

    def rows(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """Each measure with its rows (cell and unit)."""
        rows = dict.fromkeys((measure, cell, unit) for measure, cell, unit, _ in self._values)
        measures = dict.fromkeys(measure for measure, _, _ in rows)
        for measure in measures:
            yield measure, [(cell, unit) for named, cell, unit in rows if named == measure]

    def with_others(self, others: Iterable[Mapping[str, Any]]) -> "Readings":
        """These readings, and those of `others` (from `as_json`) that were not measured again."""
        both = Readings()
        for other in others:
            key = (other["measure"], other["cell"], other["unit"], other["system"])
            both._values[key] = list(other["values"])
        both._values.update(self._values)
        return both

    def as_json(self) -> list[dict[str, Any]]:
        """The readings as plain data, with median and spread."""
        plain = []
        for (measure, cell, unit, system), values in self._values.items():
            reading = Reading(measure=measure, cell=cell, unit=unit, system=system, values=tuple(values))
            plain.append(
                {**asdict(reading), "median": round_to(reading.median), "spread": round_to(reading.spread)}
            )
        return plain


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def round_to(value: float, digits: int = SIGNIFICANT_DIGITS) -> float:
    """The value with this number of significant digits."""
    if not value:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))
