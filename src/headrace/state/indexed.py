"""Rows that are found by some of their columns, and replaced one by one: the tables of a view.

An entry of a run is a row, or says that a row is gone. It has the hash of the indexed columns, by which
runs are sorted, and the hash of the columns that identify the row. Of the entries of a row with the same
indexed columns the newest one counts. So a batch writes only what it changed, even if a thousand rows have
the same foreign key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.key_hash import key_bytes, keys_of, sip_hash
from headrace.state.groups import EXPIRES, HASH
from headrace.state.runs import (
    ALWAYS,
    NEVER,
    Layout,
    Run,
    RunBuffer,
    distinct,
    expanded,
    hash_ranges,
    numbers,
    sealed,
    write_run,
)
from headrace.state.versions import merge_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.state.files import StateFiles
    from headrace.state.runs import Numbers, RunInfo

TABLE_ROWS: Final = "table"
"""The name of the runs of a table's rows in manifests."""
VIEW_ROWS: Final = "view"
"""The name of the runs of the rows that a table is joined to."""
IDENTITY: Final = "_headrace_identity"
OWN: Final = (HASH, IDENTITY, EXPIRES)
LAYOUT: Final = Layout(hash=HASH, expires=EXPIRES)
"""A row never expires; the entry of one that is gone has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumns:
    """The columns of an index."""

    schema: pa.Schema
    """Of the rows."""
    by: tuple[str, ...]
    """The columns that rows are found by; a row in which one of them is null is not kept."""
    identity: tuple[str, ...]
    """The columns that identify a row."""

    def keys(self, rows: pa.Table) -> pa.LargeBinaryArray:
        """The key by which each row is found."""
        return column_keys(rows, self.by)


class WrittenRows(NamedTuple):
    """What a batch has written."""

    runs: tuple[RunInfo, ...]
    """All runs, oldest first."""
    more: int
    """How many rows there are more than before."""


class RowIndex:
    """The rows of one index as a batch finds them, and its changes."""

    def __init__(
        self, files: StateFiles, runs: Sequence[RunInfo], columns: IndexColumns, seed: NDArray[np.uint64]
    ) -> None:
        self.columns = columns
        self._files = files
        self._seed = seed
        self._runs = [Run(files, info, LAYOUT) for info in runs]
        # A missing file is an error at once, not when a key of it is looked up.
        for run in self._runs:
            run.check()

    def find(self, keys: pa.LargeBinaryArray) -> pa.Table:
        """The rows of these keys."""
        parts = []
        hashes = distinct(_hashes(keys.drop_null(), self._seed))
        for run in self._runs if len(hashes) else ():
            for chunk, some in run.chunks_with(hashes):
                begins, ends = chunk.ranges(hashes[some])
                places = expanded(begins, ends)
                if len(places):
                    parts.append(pa.Table.from_batches([chunk.batch.take(pa.array(places))]))
        if not parts:
            return self.columns.schema.empty_table()
        found = current_rows(newest_entries(pa.concat_tables(parts)))
        return found.filter(pc.is_in(self.columns.keys(found), value_set=keys))

    def write(self, removed: pa.Table, added: pa.Table, version: int) -> WrittenRows:
        """Write the changes of a batch, which may merge runs.

        A row that is both removed and added is there afterwards.
        """
        gone, there = self._entries(removed, ALWAYS), self._entries(added, NEVER)
        fresh = newest_entries(pa.concat_tables([gone, there]))
        count = there.num_rows - gone.num_rows
        if not fresh.num_rows:
            return WrittenRows(tuple(run.info for run in self._runs), count)
        newest = RunBuffer(fresh, LAYOUT)
        runs = [*self._runs, newest]
        start = merge_start([run.info.rows for run in runs])
        if start < len(self._runs):
            batches = _merged(runs[start:], is_complete=start == 0)
        else:
            start, batches = len(self._runs), newest.sealed()
        info = write_run(self._files, version, batches, LAYOUT)
        kept = [run.info for run in runs[:start]]
        return WrittenRows((*kept, *([] if info is None else [info])), count)

    def _entries(self, rows: pa.Table, expires: int) -> pa.Table:
        keys = self.columns.keys(rows)
        if keys.null_count:
            rows, keys = rows.filter(keys.is_valid()), keys.drop_null()
        identities = _hashes(column_keys(rows, self.columns.identity), self._seed[::-1].copy())
        own = {
            HASH: _hashes(keys, self._seed),
            IDENTITY: identities,
            EXPIRES: np.full(rows.num_rows, expires),
        }
        for name, values in own.items():
            rows = rows.append_column(name, pa.array(values))
        return rows


def newest_entries(entries: pa.Table) -> pa.Table:
    """The last entry of each row, in order of hash."""
    hashes, identities = numbers(entries[HASH]), numbers(entries[IDENTITY])
    order = np.lexsort((identities, hashes))  # stable: of equal ones the newest is the last
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (np.diff(hashes[order]) != 0) | (np.diff(identities[order]) != 0)
    return entries.take(pa.array(order[is_last]))


def current_rows(entries: pa.Table) -> pa.Table:
    """The rows that entries say are there."""
    return entries.filter(pa.array(numbers(entries[EXPIRES]) == NEVER)).drop_columns(list(OWN))


def all_rows(files: StateFiles, infos: Sequence[RunInfo]) -> Iterator[pa.Table]:
    """All rows that count, some at a time."""
    for batch in _merged([Run(files, info, LAYOUT) for info in infos], is_complete=True):
        yield current_rows(pa.Table.from_batches([batch]))


def column_keys(rows: pa.Table, columns: Sequence[str]) -> pa.LargeBinaryArray:
    """The keys that columns make together, null where a part of one is null."""
    return key_bytes([single(rows[name]) for name in columns])


def single(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _hashes(keys: pa.LargeBinaryArray, seed: NDArray[np.uint64]) -> Numbers:
    hashes = np.empty(len(keys), np.uint64)
    sip_hash(keys_of(keys), seed, hashes)
    return hashes.view(np.int64)


def _merged(runs: Sequence[Run], *, is_complete: bool) -> Iterator[pa.RecordBatch]:
    """The newest entries, in order of hash, some at a time; of complete runs only those of rows."""
    for first, last in hash_ranges(runs):
        batches = [batch for run in runs for batch in run.between(first, last) if batch.num_rows]
        if not batches:
            continue
        entries = newest_entries(pa.Table.from_batches(batches))
        if is_complete:
            entries = entries.filter(pa.array(numbers(entries[EXPIRES]) == NEVER))
        if entries.num_rows:
            yield sealed(entries, LAYOUT)
