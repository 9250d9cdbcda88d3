"""A view over tables: what a batch of changes to the tables changes in the view.

```text
 departments: 1 is renamed ──▶ employees whose dept is 1 ─┐
 employees: 2 moves ──────────────────────────────────────┴▶ their rows of the view before and after: differ?
```

The tables form a tree: a first one, whose keys are those of the view, and each other one found by a foreign
key in one of those before it. A change goes up the tree by the indexes of foreign keys until it has become
keys of the first table. Of these the rows of the view are made twice, of the tables as the batch found them
and as it leaves them; where the two differ, the view has changed. So the way up may name too many keys, but
never too few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.key_hash import key_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.tables.view_table import ViewTable, WholeRows


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRows:
    """A table that a view adds to the rows of those before it."""

    definition: WholeRows
    parent: int
    """The number of the table that has the foreign key; the first one is 0."""
    foreign_key: tuple[str, ...]
    """The columns there, in the order of this table's key."""
    is_inner: bool
    """Whether a row that finds none here is left out of the view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewShape:
    """Which tables a view is made of, and how."""

    first: WholeRows
    joined: tuple[JoinedRows, ...]

    @property
    def tables(self) -> tuple[WholeRows, ...]:
        """All tables by their numbers; one may be there several times."""
        return (self.first, *(each.definition for each in self.joined))

    @property
    def columns(self) -> list[tuple[int, str]]:
        """The columns of the view: of the first table all, of the others all but the key."""
        return [
            (number, column.name)
            for number, table in enumerate(self.tables)
            for column in table.columns
            if number == 0 or column.name not in table.key
        ]

    @property
    def outline(self) -> list[object]:
        """What says that rows of the view, made by another version of the program, are still right."""
        steps = [[each.parent, each.foreign_key, each.is_inner] for each in self.joined]
        return [[table.signature for table in self.tables], steps]


class Images(NamedTuple):
    """Rows as they were and as they are; where there was or is none, the columns mean nothing."""

    before: list[pa.Array]
    was: NDArray[np.bool_]
    after: list[pa.Array]
    now: NDArray[np.bool_]

    def take(self, places: NDArray[np.int64]) -> Images:
        """Some of them."""
        return Images(
            before=_taken(self.before, places),
            was=self.was[places],
            after=_taken(self.after, places),
            now=self.now[places],
        )

    def changes(self) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """The rows as they are, or as they were where they are gone; and which are gone."""
        is_gone = ~self.now
        if not is_gone.any():
            return self.after, is_gone
        places = np.where(is_gone, 0, len(is_gone)) + np.arange(len(is_gone))
        pairs = zip(self.before, self.after, strict=True)
        return [pa.concat_arrays(pair).take(pa.array(places)) for pair in pairs], is_gone


class ViewJoin:
    """The changes of a view, from tables that have been brought to the end of a batch."""

    def __init__(self, shape: ViewShape, tables: Sequence[ViewTable]) -> None:
        self._shape = shape
        self._tables = tables
        """By number; a table that is joined twice is the same object twice."""

    def images(self) -> Images:
        """The rows of the view that the batch has changed, in the order of their keys."""
        keys = self._affected(0)
        found = Images(*self._rows(keys, before=True), *self._rows(keys, before=False))
        differs = found.was != found.now
        both = np.flatnonzero(found.was & found.now)
        differs[both] = rows_differ(_taken(found.before, both), _taken(found.after, both))
        changed = found.take(np.flatnonzero(differs))
        return changed.take(self._order(changed))

    def _order(self, images: Images) -> NDArray[np.int64]:
        columns, _ = images.changes()
        names = [name for _, name in self._shape.columns]
        keys = {name: columns[names.index(name)] for name in self._shape.first.key}
        sort_keys = [(name, "ascending") for name in keys]
        places: NDArray[np.int64] = pc.sort_indices(pa.table(keys), sort_keys=sort_keys).to_numpy()
        return places

    def _affected(self, number: int) -> pa.LargeBinaryArray:
        """The keys of a table whose rows, with all that is joined to them, may have changed."""
        found = [self._tables[number].changed_keys(), *self._affected_by_others(number)]
        return pc.unique(pa.concat_arrays(found))

    def _affected_by_others(self, number: int) -> Iterator[pa.LargeBinaryArray]:
        for child, joined in enumerate(self._shape.joined, 1):
            if joined.parent == number:
                keys = self._affected(child)
                if len(keys):
                    yield from self._tables[number].keys_with(joined.foreign_key, keys)

    def _rows(self, keys: pa.LargeBinaryArray, *, before: bool) -> tuple[list[pa.Array], NDArray[np.bool_]]:
        """The rows of the view with these keys of the first table, and which of them there are."""
        first = self._tables[0].rows(keys, before=before)
        found, is_there = [first.columns], first.is_match.copy()
        for table, joined in zip(self._tables[1:], self._shape.joined, strict=True):
            parent = self._shape.tables[joined.parent].row_type
            columns = [found[joined.parent][parent.get_field_index(name)] for name in joined.foreign_key]
            matches = table.rows(key_bytes(columns), before=before)
            found.append(matches.columns)
            if joined.is_inner:
                is_there &= matches.is_match
        types = [table.row_type for table in self._shape.tables]
        shown = [found[number][types[number].get_field_index(name)] for number, name in self._shape.columns]
        return shown, is_there


def _taken(columns: list[pa.Array], places: NDArray[np.int64]) -> list[pa.Array]:
    taken = pa.array(places)
    return [column.take(taken) for column in columns]


def rows_differ(one: list[pa.Array], other: list[pa.Array]) -> NDArray[np.bool_]:
    """Which rows are not the same in all columns; two nulls are the same."""
    differs: NDArray[np.bool_] = np.zeros(len(one[0]), np.bool_)
    for first, second in zip(one, other, strict=True):
        differs |= _differing(first, second)
    return differs


def _differing(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    if pt.is_nested(one.type):
        # Arrow compares no lists, maps or structs.
        pairs = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.fromiter((first != second for first, second in pairs), np.bool_, len(one))
    if pt.is_floating(one.type):
        # By their bits: what is not a number equals itself, and 0.0 is written otherwise than -0.0.
        bits = pa.int64() if one.type.bit_width == 64 else pa.int32()
        one, other = one.view(bits), other.view(bits)
    same = pc.if_else(one.is_null(), other.is_null(), pc.equal(one, other).fill_null(False))
    differs: NDArray[np.bool_] = pc.invert(same).to_numpy(zero_copy_only=False)
    return differs
