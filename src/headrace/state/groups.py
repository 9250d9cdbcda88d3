"""State by key: a batch replaces the groups of the keys that it touched.

A group is the rows of all keys of one hash; two keys of one hash are in one group, and operators tell them
apart by comparing keys. The newest run that has a group has all of it. A group without rows is a tombstone:
one row whose expiry is before every time.

Each group has two times. At `due` an operator has to look at it even if no new row has its key: a window
closes, a session ends. From `expires` on it does not count: it is dropped when runs are merged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.state.runs import (
    ALWAYS,
    NEVER,
    ORDER,
    Layout,
    Run,
    RunBuffer,
    distinct,
    expanded,
    hash_ranges,
    is_in,
    numbers,
    sealed,
    stretch_starts,
    write_run,
)
from headrace.state.versions import BatchFigures, merge_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.state.runs import Chunk
    from headrace.state.versions import Manifest, Versions

    Numbers: TypeAlias = NDArray[np.int64]

HASH: Final = "_headrace_hash"
DUE: Final = "_headrace_due"
EXPIRES: Final = "_headrace_expires"
LAYOUT: Final = Layout(hash=HASH, due=DUE, expires=EXPIRES)
RUNS: Final = "groups"
"""The name of the runs in manifests."""

Upgrade: TypeAlias = "Callable[[pa.Table], pa.Table]"
"""Gives rows of an earlier definition of an operator the columns of today's."""


class Groups(NamedTuple):
    """Groups that were looked up."""

    hashes: Numbers
    """Those of the groups that there are, sorted."""
    rows: pa.Table | None
    """The rows of those that have not expired, or None if there are none."""
    row_count: int
    """The rows of all of them."""
    has_due: bool
    """Whether one of them is due."""


class GroupStore:
    """The groups of one partition as a batch finds them, and its changes."""

    def __init__(
        self, versions: Versions, before: Manifest, upgrade: Upgrade, *, keep: set[str] | None = None
    ) -> None:
        self.before = before
        self._versions = versions
        self._upgrade = upgrade
        self._keep = before.names if keep is None else keep
        self._runs = [Run(versions.files, info, LAYOUT) for info in before.runs.get(RUNS, ())]
        # A missing file is an error at once, not when a key of it is looked up.
        for run in self._runs:
            run.check()

    def look_up(self, touched: Numbers, *, until_us: int, expired_us: int) -> Groups:
        """The groups of the hashes `touched`, and those that are due by `until_us`.

        `touched` is sorted, without duplicates. Groups that expired by `expired_us` have no rows.
        """
        candidates = self._due_hashes(until_us)
        rest = distinct(np.concatenate([touched, candidates])) if len(candidates) else touched
        hashes, parts, row_count, has_due = [np.empty(0, np.int64)], [], 0, False
        for run in reversed(self._runs):
            if not len(rest):
                break
            is_found = np.zeros(len(rest), np.bool_)
            for chunk, some in run.chunks_with(rest):
                begins, ends = chunk.ranges(rest[some])
                is_found[some] = ends > begins
                wanted, begins, ends = (each[ends > begins] for each in (rest[some], begins, ends))
                expires, is_due = chunk.expires[begins], chunk.due[begins] <= until_us
                counts = (expires > ALWAYS) & (is_due | is_in(wanted, touched))
                is_alive = counts & (expires > expired_us)
                hashes.append(wanted[counts])
                row_count += int((ends - begins)[counts].sum())
                has_due |= bool((counts & is_due).any())
                if is_alive.any():
                    parts.append(_taken(chunk, expanded(begins[is_alive], ends[is_alive])))
            rest = rest[~is_found]
        found = np.sort(np.concatenate(hashes))
        return Groups(found, _joined(parts, self._upgrade) if parts else None, row_count, has_due)

    def _due_hashes(self, until_us: int) -> Numbers:
        """The hashes of groups that became due since the last batch, by any of their versions; sorted."""
        after_us = self.before.watermark_us
        found = []
        for run in self._runs:
            for number, info in enumerate(run.info.chunks):
                if info.first_due <= until_us and info.last_due > after_us:
                    chunk = run.chunk(number)
                    found.append(chunk.hashes[chunk.due_between(after_us, until_us)])
        return distinct(np.concatenate(found)) if found else np.empty(0, np.int64)

    def all_rows(self, expired_us: int) -> Iterator[pa.Table]:
        """All rows that count, in order of hash, with the columns of `LAYOUT`; some at a time."""
        return merged_groups(self._runs, expired_us=expired_us, is_complete=True, upgrade=self._upgrade)

    def rows_of(self, hashes: Numbers, expired_us: int) -> Iterator[pa.Table]:
        """The rows of some hashes that count, with the columns of `LAYOUT`."""
        for rows in self._newest(hashes):
            yield rows.filter(pa.array(numbers(rows[EXPIRES]) > expired_us))

    def _newest(self, hashes: Numbers) -> Iterator[pa.Table]:
        for each in hashes.tolist():
            for run in reversed(self._runs):
                parts = [batch for batch in run.between(each, each) if batch.num_rows]
                if parts:
                    yield _joined([pa.Table.from_batches(parts).drop_columns([ORDER])], self._upgrade)
                    break

    def keep(self, version: int, watermark_us: int, figures: BatchFigures) -> Manifest:
        """Make the state that of a batch without a change."""
        return self._write(version, watermark_us, self._runs, self.before.rows, figures)

    def replace(
        self, found: Groups, rows: pa.Table | None, *, version: int, watermark_us: int, figures: BatchFigures
    ) -> Manifest:
        """Make the state that of a batch: `rows` in place of the groups that were found.

        `rows` are made by `group_rows`; None is no rows.
        """
        if rows is None:
            if not len(found.hashes):
                return self.keep(version, watermark_us, figures)
            schema = self._runs[-1].chunk(0).batch.schema
            rows = schema.remove(schema.get_field_index(ORDER)).empty_table()
        gone = found.hashes[~is_in(found.hashes, numbers(rows[HASH]))]
        fresh = _sorted(pa.concat_tables([rows, _tombstones(gone, rows.schema)])) if len(gone) else rows
        runs, expired = self._runs_with(fresh, version, watermark_us) if fresh.num_rows else (self._runs, 0)
        runs, dropped = self._without_expired(runs, watermark_us)
        count = self.before.rows + rows.num_rows - found.row_count - expired - dropped
        return self._write(version, watermark_us, runs, count, figures)

    def rewrite(self, times: Callable[[pa.Table, Numbers], pa.Table], version: int) -> GroupStore:
        """The store with all groups written again; `times` makes groups of rows and their hashes.

        No manifest names the new run until the batch writes its own.
        """
        parts = (
            sealed(times(rows.drop_columns([HASH, DUE, EXPIRES]), numbers(rows[HASH])), LAYOUT)
            for rows in self.all_rows(ALWAYS)
            if rows.num_rows
        )
        info = write_run(self._versions.files, version, parts, LAYOUT)
        runs = () if info is None else (info,)
        before = replace(self.before, runs={RUNS: runs}, rows=sum(run.rows for run in runs))
        return GroupStore(self._versions, before, self._upgrade, keep=self._keep)

    def _write(
        self, version: int, watermark_us: int, runs: Sequence[Run], rows: int, figures: BatchFigures
    ) -> Manifest:
        after = replace(
            self.before,
            version=version,
            runs={RUNS: tuple(run.info for run in runs)},
            watermark_us=max(watermark_us, self.before.watermark_us),
            rows=rows,
            **figures.noted(),
        )
        self._versions.write(after, keep=self._keep)
        return after

    def _runs_with(self, fresh: pa.Table, version: int, watermark_us: int) -> tuple[list[Run], int]:
        """The runs with that of a batch, some of them merged; and how many rows expired thereby."""
        newest = RunBuffer(fresh, LAYOUT)
        runs = [*self._runs, newest]
        start = merge_start([run.info.rows for run in runs])
        expired = _Count()
        if start < len(runs):
            made = merged_groups(
                runs[start:],
                expired_us=watermark_us,
                is_complete=start == 0,
                upgrade=self._upgrade,
                count=expired,
            )
            batches: Iterator[pa.RecordBatch] = (sealed(rows, LAYOUT) for rows in made if rows.num_rows)
        else:
            start, batches = len(runs) - 1, newest.sealed()
        info = write_run(self._versions.files, version, batches, LAYOUT)
        written = [] if info is None else [Run(self._versions.files, info, LAYOUT)]
        return [*runs[:start], *written], expired.rows

    def _without_expired(self, runs: list[Run], watermark_us: int) -> tuple[list[Run], int]:
        """Without the oldest runs of which every group has expired; and how many rows these had."""
        dropped = 0
        while runs and runs[0].info.last_expires <= watermark_us:
            oldest, *runs = runs
            dropped += sum(_rows_that_count(chunk, runs) for chunk in oldest.chunks())
        return runs, dropped


class _Count:
    """A number of rows that a generator counts."""

    def __init__(self) -> None:
        self.rows = 0


def merged_groups(
    runs: Sequence[Run], *, expired_us: int, is_complete: bool, upgrade: Upgrade, count: _Count | None = None
) -> Iterator[pa.Table]:
    """The newest group of each hash, in order of hash, some at a time.

    Groups that have expired are left out if the runs are `is_complete`, with none that is older. Otherwise a
    tombstone takes the place of each, so that no older group of its hash counts again.
    """
    for first, last in hash_ranges(runs):
        parts: list[pa.Table] = []
        seen: list[Numbers] = []
        for run in reversed(runs):
            batches = [batch for batch in run.between(first, last) if batch.num_rows]
            if not batches:
                continue
            rows = pa.Table.from_batches(batches)
            rows = _not_seen(rows.drop_columns([ORDER]) if ORDER in rows.column_names else rows, seen)
            if rows.num_rows:
                parts.append(rows)
        if parts:
            yield _expired(_joined(parts, upgrade), expired_us, is_complete=is_complete, count=count)


def _not_seen(rows: pa.Table, seen: list[Numbers]) -> pa.Table:
    """The rows of hashes that no newer run has; their hashes are added to those that were seen."""
    hashes = numbers(rows[HASH])
    starts = np.flatnonzero(stretch_starts(hashes))
    groups = hashes[starts]
    is_new = np.ones(len(groups), np.bool_)
    for newer in seen:
        is_new &= ~is_in(groups, newer)
    seen.append(groups)
    if is_new.all():
        return rows
    ends = np.append(starts[1:], len(hashes))
    return rows.take(pa.array(expanded(starts[is_new], ends[is_new])))


def _expired(rows: pa.Table, expired_us: int, *, is_complete: bool, count: _Count | None) -> pa.Table:
    """Rows without those that have expired, or with tombstones for them."""
    expires = numbers(rows[EXPIRES])
    has_expired = expires <= expired_us
    if not has_expired.any():
        return _sorted(rows)
    if count is not None:
        count.rows += int(np.count_nonzero(has_expired & (expires > ALWAYS)))
    kept = rows.filter(pa.array(~has_expired))
    if is_complete:
        return _sorted(kept)
    gone = distinct(numbers(rows[HASH])[has_expired])
    return _sorted(pa.concat_tables([kept, _tombstones(gone, rows.schema)]))


def group_rows(
    rows: pa.Table, hashes: Numbers, due_us: Numbers, expires_us: Numbers, *, after_us: int
) -> pa.Table:
    """Rows in order of their hashes, with the times of their groups: the earliest due time, the last expiry.

    No group is due at or before `after_us`, which is over, and none expires before it is due.
    """
    due, expires = due_us, expires_us
    if not np.all(hashes[1:] >= hashes[:-1]):  # they are in order if their kernel left them in theirs
        order = np.argsort(hashes, kind="stable")
        rows, hashes, due, expires = rows.take(pa.array(order)), hashes[order], due[order], expires[order]
    starts = np.flatnonzero(stretch_starts(hashes))
    if len(starts):
        lengths = np.diff(starts, append=len(hashes))
        due = np.maximum(np.minimum.reduceat(due, starts), after_us + 1)
        expires = np.maximum.reduceat(expires, starts)
        expires = np.where(due < NEVER, np.maximum(expires, due), expires)
        due, expires = np.repeat(due, lengths), np.repeat(expires, lengths)
    for name, values in ((HASH, hashes), (DUE, due), (EXPIRES, expires)):
        rows = rows.append_column(name, pa.array(np.asarray(values, np.int64)))
    return rows


def _taken(chunk: Chunk, positions: Numbers) -> pa.Table:
    """Rows of a chunk with the columns of their operator."""
    is_all = len(positions) == chunk.batch.num_rows
    taken = chunk.batch if is_all else chunk.batch.take(pa.array(positions))
    return pa.Table.from_batches([taken]).drop_columns([HASH, DUE, EXPIRES, ORDER])


def _tombstones(hashes: Numbers, schema: pa.Schema) -> pa.Table:
    times = {HASH: hashes, DUE: np.full(len(hashes), NEVER), EXPIRES: np.full(len(hashes), ALWAYS)}
    columns = [
        pa.array(times[field.name]) if field.name in times else pa.nulls(len(hashes), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _sorted(rows: pa.Table) -> pa.Table:
    hashes = numbers(rows[HASH])
    if np.all(hashes[1:] >= hashes[:-1]):
        return rows
    return rows.take(pa.array(np.argsort(hashes, kind="stable")))


def _joined(parts: Sequence[pa.Table], upgrade: Upgrade) -> pa.Table:
    """Parts as one table; if an earlier definition of the operator wrote some, all get today's columns."""
    if any(not part.schema.equals(parts[0].schema) for part in parts):
        parts = [_upgraded(part, upgrade) for part in parts]
    return pa.concat_tables(parts)


def _upgraded(part: pa.Table, upgrade: Upgrade) -> pa.Table:
    own = [name for name in (HASH, DUE, EXPIRES) if name in part.column_names]
    upgraded = upgrade(part.drop_columns(own))
    for name in own:
        upgraded = upgraded.append_column(name, part[name])
    return upgraded


def _rows_that_count(chunk: Chunk, newer: Sequence[Run]) -> int:
    """The rows of a chunk that no newer run replaces, without tombstones."""
    counts = chunk.expires > ALWAYS
    for run in newer:
        for other, some in run.chunks_with(chunk.hashes):
            counts[some] &= ~is_in(chunk.hashes[some], other.hashes[other.group_starts])
    return int(np.count_nonzero(counts))
