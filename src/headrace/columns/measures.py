"""Aggregates that can be put together from parts: sum, count, min, max and mean.

A part says what some rows come to, and is made of numbers only: how many rows, and for each column of values
the sum, the count of those that are not null, the smallest and the largest. Parts of parts are parts again,
so an event, a pane of a window and a window are computed in one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.range_kernels import find_extremes, sum_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.columns.range_kernels import Numbers, Positions

Kind = Literal["sum", "count", "min", "max", "mean"]
Parts: TypeAlias = "Mapping[str, Numbers]"
"""Numbers for each row, by name: `ROWS`, and `<column>.sum`, `.count`, `.min`, `.max`."""

ROWS: Final = "_headrace_rows"
_NEEDED: Final = {"sum": ("sum",), "mean": ("sum",), "count": (), "min": ("min",), "max": ("max",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One aggregate of a result."""

    name: str
    kind: Kind
    column: str | None = None
    """The column of values, whole numbers or floating-point ones; None counts rows."""


def part_names(measures: Sequence[Measure]) -> tuple[str, ...]:
    """The parts from which these aggregates can be made."""
    names = [ROWS]
    for measure in measures:
        if measure.column is not None:
            needed = ("count", *_NEEDED[measure.kind])
            names += [f"{measure.column}.{part}" for part in needed]
    return tuple(dict.fromkeys(names))


def parts_of(rows: pa.Table, names: Sequence[str]) -> dict[str, Numbers]:
    """Each row as a part of its own."""
    parts: dict[str, Numbers] = {ROWS: np.ones(rows.num_rows, np.int64)}
    for name in names:
        if name != ROWS:
            column, _, part = name.rpartition(".")
            parts[name] = _part(rows[column], part)
    return parts


def _part(column: pa.ChunkedArray, part: str) -> Numbers:
    if part == "count":
        return np.array(pc.is_valid(column).to_numpy(), np.int64)
    nothing = _nothing(column.type, part)
    filled = pc.fill_null(column, pa.scalar(nothing, column.type)) if column.null_count else column
    # A copy, for loops are compiled for memory that can be written; and a sum that makes 0 of -0: which of
    # the two is the smaller, nobody could say.
    return np.asarray(filled.to_numpy() + column.type.to_pandas_dtype()(0))


def _nothing(kind: pa.DataType, part: str) -> float | int:
    """The value that changes no sum, or no extreme."""
    if part == "sum":
        return 0
    if pa.types.is_floating(kind):
        return float("nan") if part == "min" else float("-inf")
    return int(np.iinfo(np.int64).max if part == "min" else np.iinfo(np.int64).min)


def merge_parts(parts: Parts, starts: Positions) -> dict[str, Numbers]:
    """One part for each stretch of rows that begins at one of `starts`."""
    return {name: _merging(name, values).reduceat(values, starts) for name, values in parts.items()}


def decimal_sums(parts: Parts) -> list[Numbers]:
    """The sums that depend on the order in which they are added."""
    sums = [values for name, values in parts.items() if name.endswith(".sum")]
    return [values for values in sums if values.dtype.kind == "f"]


def _merging(name: str, values: Numbers) -> np.ufunc:
    if name.endswith(".min"):
        # NaN is larger than any number: the smallest is NaN only where there is nothing else.
        return np.fmin if values.dtype.kind == "f" else np.minimum
    return np.maximum if name.endswith(".max") else np.add


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Ranges of rows, none of which begins or ends before the one in front of it."""

    firsts: Positions
    lasts: Positions
    blocks: Positions
    """Numbers for stretches of rows, upwards from 0: see `sum_ranges`."""

    def measure(self, measure: Measure, parts: Parts) -> pa.Array:
        """An aggregate for each range; null where none of its rows has a value."""
        if measure.column is None:
            return pa.array(self._sums(parts[ROWS]))
        counts = self._sums(parts[f"{measure.column}.count"])
        if measure.kind == "count":
            return pa.array(counts)
        return pa.array(self._values(measure, parts, counts), mask=counts == 0)

    def _values(self, measure: Measure, parts: Parts, counts: Numbers) -> Numbers:
        if measure.kind in ("min", "max"):
            return self._extremes(measure, parts)
        sums = self._sums(parts[f"{measure.column}.sum"])
        return sums if measure.kind == "sum" else sums / np.maximum(counts, 1)

    def _sums(self, values: Numbers) -> Numbers:
        if values.dtype.kind == "i":
            # Whole numbers are exact in any order, and so are differences of running sums.
            running = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
            return np.asarray(running[self.lasts + 1] - running[self.firsts])
        sums, heads, tails = np.empty_like(values, shape=len(self.firsts)), *_room_for(values)
        ends = np.flatnonzero(np.diff(self.blocks, append=-1))
        sum_ranges(values, self.blocks, ends, self.firsts, self.lasts, heads, tails, sums)
        return sums

    def _extremes(self, measure: Measure, parts: Parts) -> Numbers:
        values = parts[f"{measure.column}.{measure.kind}"]
        counts = cast("Positions", parts[f"{measure.column}.count"])
        found = np.empty(len(self.firsts), np.int64)
        queue = np.empty(len(values), np.int64)
        find_extremes(values, counts, measure.kind == "max", self.firsts, self.lasts, queue, found)
        return values[found]


def _room_for(values: Numbers) -> tuple[Numbers, Numbers]:
    return np.empty_like(values), np.empty_like(values)
