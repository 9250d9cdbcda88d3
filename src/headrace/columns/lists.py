"""Lists of values in one flat array: joined, sorted, without duplicates, and their quantiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.keyed import changes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """Concatenated lists: list n has the values from offset n up to offset n + 1."""

    flat: pa.Array
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, array: pa.ListArray) -> Lists:
        """The lists of an Arrow array, none of which is null."""
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        flat = array.flatten()
        return cls(flat=flat, offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))

    @classmethod
    def of_rows(cls, values: pa.Array, is_value: pa.Array) -> Lists:
        """A list for each row: with its value, or empty."""
        lengths = is_value.to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(flat=values.filter(is_value), offsets=np.concatenate([[0], np.cumsum(lengths)]))

    @property
    def array(self) -> pa.ListArray:
        """The lists as an Arrow array."""
        return pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), self.flat)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each list."""
        return np.diff(self.offsets)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The list of each value, by its number."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.lengths)

    def joined(self, starts: NDArray[np.int64]) -> Lists:
        """One list for each run of lists that begins at one of `starts`."""
        ends = self.offsets[np.append(starts, len(self.offsets) - 1)]
        return replace(self, offsets=ends)

    def field(self, name: str) -> Lists:
        """One field of values that are structs."""
        return replace(self, flat=pc.struct_field(self.flat, name))

    def sorted(self, by: Sequence[str] = ()) -> Lists:
        """The values of each list in order, or in order of the fields `by` of structs."""
        columns = {"list": pa.array(self.numbers)}
        for name in by or ("",):
            column = pc.struct_field(self.flat, name) if by else self.flat
            if not pa.types.is_nested(column.type):
                columns[f"by {name}"] = column
        order = pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
        return replace(self, flat=self.flat.take(order))

    def distinct(self, most: int = 0) -> Lists:
        """Each value of a list once, in order; with `most`, at most that many of the smallest."""
        encoded = self.flat.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy()
        size = max(1, len(order))
        ranks = np.empty(size, np.int64)
        ranks[order] = np.arange(len(order))
        found = np.sort(self.numbers * size + ranks[encoded.indices.to_numpy()])
        found = found[changes(found)]
        numbers, codes = found // size, found % size
        if most and len(found):
            firsts = np.searchsorted(numbers, np.arange(len(self.offsets) - 1))
            is_kept = np.arange(len(numbers)) - firsts[numbers] < most
            numbers, codes = numbers[is_kept], codes[is_kept]
        lengths = np.bincount(numbers, minlength=len(self.offsets) - 1)
        return Lists(
            flat=encoded.dictionary.take(pa.array(order[codes])),
            offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        )

    def quantiles(self, shares: Sequence[float], *, is_continuous: bool) -> pa.Array:
        """The quantiles of each list, as a list of them; null for an empty list.

        Continuous quantiles interpolate between two values; discrete ones are values of the list.
        """
        ordered = self.sorted()
        lengths, begins = self.lengths[:, None], self.offsets[:-1, None]
        last = np.maximum(lengths - 1, 0)
        if is_continuous:
            found = ordered._between(begins, np.asarray(shares)[None, :] * last, last)
        else:
            places = np.clip(np.ceil(np.asarray(shares)[None, :] * lengths) - 1, 0, last).astype(np.int64)
            found = ordered._taken((begins + places).ravel())
        offsets = np.arange(0, len(found) + 1, len(shares), dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets, mask=np.append(self.lengths == 0, False)), found)

    def _between(
        self, begins: NDArray[np.int64], places: NDArray[np.float64], last: NDArray[np.int64]
    ) -> pa.Array:
        lower = np.floor(places).astype(np.int64)
        weights = (places - lower).ravel()
        below, above = (
            self._taken((begins + np.minimum(place, last)).ravel()).cast(pa.float64()).to_numpy(False)
            for place in (lower, lower + 1)
        )
        # Not below + weight * (above - below), which is not exact where the weight is 0 or 1.
        return pa.array((1 - weights) * below + weights * above)

    def _taken(self, places: NDArray[np.int64]) -> pa.Array:
        """The values at some positions, or null."""
        is_there = places < len(self.flat)
        return self.flat.take(pa.array(np.where(is_there, places, 0), mask=~is_there))
