"""The kernel of rankings: of the rows of each group the first few, with their ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.keyed import key_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Direction = Literal["ascending", "descending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a task does with all rows of some groups, which come in any order."""

    count: int
    groups: tuple[str, ...]
    order: tuple[tuple[str, Direction], ...]
    """All columns that are none of the groups: so rows that tie are the same."""
    rank: str
    """The column that is added: 1, 2, 3, …"""

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
            [pa.array(codes), *(_sortable(rows[name]) for name, _ in self.order)],
            names=["group", *(f"by{number}" for number in range(len(self.order)))],
        )
        directions = ["ascending", *(direction for _, direction in self.order)]
        keys = list(zip(sortable.column_names, directions, strict=True))
        places = pc.sort_indices(sortable, sort_keys=keys).to_numpy()
        ordered = codes[places]
        starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        lengths = np.diff(np.append(starts, len(ordered)))
        ranks = np.arange(len(ordered)) - np.repeat(starts, lengths) + 1
        is_best = ranks <= self.count
        best = rows.take(pa.array(places[is_best]))
        return best.append_column(self.rank, pa.array(ranks[is_best].astype(np.int32)))


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column, or where Arrow cannot sort by it, because it has parts, texts of the same values."""
    if not pt.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
