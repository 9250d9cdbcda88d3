"""What a metric is, the samples of one scrape, and histograms that count with plain integers."""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LATENCY_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets of a latency, in seconds."""


class Kind(enum.Enum):
    """The types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric as the page shows it. The name of a counter ends with `_total`."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


class Histogram:
    """Counts observations in buckets; one observation costs less than a microsecond."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, int]]:
        """The upper bounds with the number of values up to each, as Prometheus shows them."""
        total = 0
        found = []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            total += count
            found.append((bound, total))
        return found


@dataclass(frozen=True, slots=True)
class Summary:
    """The number of observations, and their sum."""

    count: int
    sum: float


Value = float | Histogram | Summary


@dataclass(slots=True)
class Scrape:
    """The samples of one request for the page, by metric."""

    samples: dict[Metric, list[tuple[Mapping[str, str], Value]]] = field(default_factory=dict)

    def add(self, metric: Metric, value: Value, *labels: object) -> None:
        """Add a sample; the values of the labels are in the order of `Metric.labels`."""
        named = dict(zip(metric.labels, map(str, labels), strict=True))
        self.samples.setdefault(metric, []).append((named, value))

    def add_labeled(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Add a sample to a metric whose samples have different labels."""
        self.samples.setdefault(metric, []).append((labels, value))

    def announce(self, *metrics: Metric) -> None:
        """Show metrics even if they have no samples."""
        for metric in metrics:
            self.samples.setdefault(metric, [])
