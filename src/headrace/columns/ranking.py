"""The kernels of rankings: of the rows of each group the first few, with their ranks.

`Ranking` is for groups whose rows are all in one batch. `ChangingRanking` is for rows that can be retracted:
an `Operation` of `ChangelogKernel`, which keeps the rows of each group and emits the ranks that change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.changelog import Grouped, comparable, repeated, weighted
from headrace.columns.keyed import key_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times

    Numbers = NDArray[np.int64]

Direction = Literal["ascending", "descending"]
Ties = Literal["row_number", "rank", "dense_rank"]
"""What ranks rows that tie have, by the names of SQL: different ones, one, or one without a gap after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a task does with all rows of some groups, which come in any order."""

    count: int
    groups: tuple[str, ...]
    order: tuple[tuple[str, Direction], ...]
    """All columns that are none of the groups: so rows that tie are the same."""
    rank: str
    """The column that is added: 1, 2, 3, …"""
    ties: Ties = "row_number"
    compared: int = 0
    """By how many of the columns of `order` rows tie."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first rows of each group, in their order."""
        gathered = [batch for batch in batches if batch.num_rows]
        if gathered:
            yield from self.best(pa.Table.from_batches(gathered)).combine_chunks().to_batches()

    def best(self, rows: pa.Table) -> pa.Table:
        """The same of a table.

        >>> ranking = Ranking(count=1, groups=("w",), order=(("n", "descending"),), rank="rank")
        >>> ranking.best(pa.table({"w": ["a", "a", "b"], "n": [1, 2, None]})).to_pylist()
        [{'w': 'a', 'n': 2, 'rank': 1}, {'w': 'b', 'n': None, 'rank': 1}]
        """
        codes = key_codes(rows, self.groups)
        sortable = pa.table(
            [pa.array(codes), *(comparable(rows[name]) for name, _ in self.order)],
            names=["group", *(f"by{number}" for number in range(len(self.order)))],
        )
        directions = ["ascending", *(direction for _, direction in self.order)]
        keys = list(zip(sortable.column_names, directions, strict=True))
        places = pc.sort_indices(sortable, sort_keys=keys).to_numpy()
        ranks = self._ranks(codes[places], rows, places)
        is_best = ranks <= self.count
        best = rows.take(pa.array(places[is_best]))
        return best.append_column(self.rank, pa.array(ranks[is_best].astype(np.int32)))

    def _ranks(self, groups: Numbers, rows: pa.Table, places: Numbers) -> Numbers:
        """The rank of each row; rows are in order of their groups, and of their columns in these."""
        begins = np.append(True, groups[1:] != groups[:-1])[: len(groups)]
        numbers = np.arange(len(groups))
        first_of_group = np.maximum.accumulate(np.where(begins, numbers, 0))
        if self.ties == "row_number":
            return np.asarray(numbers - first_of_group + 1)
        names = [name for name, _ in self.order[: self.compared]]
        values = key_codes(rows, names)[places]
        differs = begins | np.append(True, values[1:] != values[:-1])[: len(groups)]
        if self.ties == "rank":
            return np.asarray(np.maximum.accumulate(np.where(differs, numbers, 0)) - first_of_group + 1)
        distinct = np.cumsum(differs)
        return np.asarray(distinct - distinct[first_of_group] + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingRanking(Grouped):
    """A ranking of rows that can be retracted."""

    name: str
    ranking: Ranking
    end: str
    """The column of the ends of windows: by them it is known which rows cannot change any more."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The rows that are ranked together."""
        return self.ranking.groups

    def results(self, rows: pa.Table) -> pa.Table:
        """The first rows of each group."""
        return weighted(self.ranking.best(repeated(rows)), 1)

    def times_us(self, rows: pa.Table) -> Numbers:
        """The end of the window of each row."""
        return np.asarray(rows[self.end].cast(pa.int64()).to_numpy())

    closes_us = expires_us = times_us

    def closing(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """Rows of windows that end between the two watermarks."""
        ends = self.times_us(rows)
        return np.asarray((ends > times.late_us) & (ends <= times.watermark_us))

    def kept(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """The rows of windows that have not ended."""
        return np.asarray(self.times_us(rows) > times.watermark_us)
