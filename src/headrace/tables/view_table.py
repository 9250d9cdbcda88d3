"""A table of a view: its rows as a batch found them and as it leaves them, by key and by foreign key.

The copy is that of a joined table, with two differences. A row counts since the batch that brought it, not
since a time: of several records of a key the last one in the log counts, as it does for compaction. And the
key's columns are among the values, for a view shows them.

The index by foreign key is made of the files: it is kept in memory for the base, which many batches share,
and made anew for the hot file, which is small.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.columns.key_hash import key_bytes, keys_of
from headrace.tables.copy import TableCopy, TableCopyLost
from headrace.tables.definition import Definition
from headrace.tables.files import read_versions
from headrace.tables.kernels import hash_keys
from headrace.tables.lookup import Matches, TableSnapshot, Versions
from headrace.tables.versions import column_numbers, single

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.tables.changes import Changes, Positions

NO_KEYS = pa.array([], pa.large_binary())


class WholeRows(Definition):
    """A table whose copy has the columns of the key among the others."""

    @property
    def columns(self) -> tuple[pa.Field, ...]:
        """All columns of a row."""
        return tuple(self.row_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A batch, as far as it is about one table."""

    batch: int
    start: Positions | None
    """Where the batch begins; None for the first one, which reads all that is there."""
    end: Positions


class ViewTable:
    """A table in a folder; one process has it at a time."""

    def __init__(
        self, folder: Path, definition: WholeRows, read: Callable[[Positions, Positions], Changes]
    ) -> None:
        self._definition = definition
        self._read = read
        self._copy = TableCopy(folder, definition, self._read_batch)
        self._step = Step(batch=-1, start=None, end={})
        self._parts: list[_Part] = []
        self._snapshot = TableSnapshot(None, None)

    def advance(self, step: Step) -> None:
        """Bring the table to the end of a batch; its rows before the batch can still be looked up."""
        self._step = step
        current = self._copy.advance(step.batch, step.end)
        known = {part.path: part for part in self._parts}
        opened = [
            known.get(path) or _Part.at(path) for path in (current.base, current.hot) if path is not None
        ]
        self._parts = opened
        base = opened[0].versions if current.base is not None else None
        self._snapshot = TableSnapshot(base, opened[-1].versions if current.hot is not None else None)

    def changed_keys(self) -> pa.LargeBinaryArray:
        """The keys of which the batch said something, some of them more than once."""
        found = [part.keys.filter(pa.array(part.since == self._step.batch)) for part in self._parts[-1:]]
        return found[0] if found else NO_KEYS

    def keys_with(self, columns: tuple[str, ...], wanted: pa.LargeBinaryArray) -> list[pa.LargeBinaryArray]:
        """The keys of all rows that had one of these foreign keys before the batch, or have it now.

        There may be some more of them: rows of older batches, and those whose hash is the same.
        """
        numbers = tuple(self._definition.row_type.get_field_index(name) for name in columns)
        return [part.keys_with(numbers, wanted) for part in self._parts]

    def rows(self, keys: pa.LargeBinaryArray, *, before: bool) -> Matches:
        """The row of each key, before the batch or after it."""
        times = np.full(len(keys), self._step.batch - 1) if before else None
        found = self._snapshot.look_up(keys, times)
        if found is not None:
            return found
        nothing = [pa.nulls(len(keys), field.type) for field in self._definition.columns]
        return Matches(nothing, np.zeros(len(keys), np.bool_))

    def _read_batch(self, start: Positions, end: Positions) -> Changes:
        if self._step.start is not None and start != self._step.start:
            raise TableCopyLost(
                f"the copy of the table of {self._definition.topic!r} is not the one that the last batch "
                "left: its files were lost, or the schema of the table was changed. What the view has to "
                "forget is not known any more: delete the view's topic, and begin anew with `headrace job "
                "reset`."
            )
        return self._counted_by_batch(self._read(start, end))

    def _counted_by_batch(self, changes: Changes) -> Changes:
        """The same changes, in the order of the log, counting since the batch."""
        since = pa.array(np.full(changes.versions.num_rows, self._step.batch))
        position = changes.versions.column_names.index("valid_from")
        versions = changes.versions.set_column(position, "valid_from", since)
        numbers = {"offset": np.int64, "partition": np.int32, "hash": np.uint64}
        order = np.lexsort([column_numbers(versions, name, kind) for name, kind in numbers.items()])
        return replace(changes, versions=versions.take(pa.array(order)), newest_us=self._step.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A file of the copy, with its indexes."""

    path: str
    keys: pa.LargeBinaryArray
    since: NDArray[np.int64]
    versions: Versions
    indexes: dict[tuple[int, ...], _Index] = field(default_factory=dict)

    @classmethod
    def at(cls, path: str) -> _Part:
        found = read_versions(Path(path))
        assert found is not None, "the copy has just opened it"
        versions = Versions.of(found[0])
        return cls(
            path=path, keys=single(found[0], "key"), since=versions.order.valid_from, versions=versions
        )

    def keys_with(self, columns: tuple[int, ...], wanted: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        if columns not in self.indexes:
            self.indexes[columns] = _Index.of(key_bytes([self.versions.values[number] for number in columns]))
        return self.keys.take(pa.array(self.indexes[columns].places(wanted)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Index:
    """Rows by the hash of a foreign key; those without one are not in it."""

    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, foreign: pa.LargeBinaryArray) -> _Index:
        hashes = _hashes(foreign)
        rows = np.flatnonzero(foreign.is_valid().to_numpy(zero_copy_only=False)).astype(np.int32)
        order = np.argsort(hashes[rows])
        return cls(hashes=hashes[rows][order], rows=rows[order])

    def places(self, wanted: pa.LargeBinaryArray) -> NDArray[np.int32]:
        """Where the rows are that have one of the wanted foreign keys."""
        hashes = np.unique(_hashes(wanted))
        first = np.searchsorted(self.hashes, hashes, "left")
        counts = np.searchsorted(self.hashes, hashes, "right") - first
        # Each range from its first place on: a running number, less what the ranges before it have counted.
        begun = np.repeat(first - (np.cumsum(counts) - counts), counts)
        return self.rows[begun + np.arange(len(begun))]


def _hashes(keys: pa.LargeBinaryArray) -> NDArray[np.uint64]:
    hashes = np.empty(len(keys), np.uint64)
    hash_keys(keys_of(keys), hashes)
    return hashes
