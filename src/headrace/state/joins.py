"""The state of a join of two streams: rows are added, and never replaced.

The rows of a key are those of all runs together. A batch adds a run for each side; of a side whose rows come
out without a match it also adds a run with the ids of the rows that it matched. All of them expire by the
time of the row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.columns.joining import ID, LEFT, MATCHED, RIGHT, JoinState
from headrace.columns.key_hash import row_hashes
from headrace.columns.segments import AT, CODE, JoinSegment, make_segments
from headrace.state.runs import (
    ALWAYS,
    ORDER,
    Layout,
    Run,
    RunBuffer,
    hash_ranges,
    is_in,
    numbers,
    sealed,
    write_run,
)
from headrace.state.versions import BatchFigures, Versions, merge_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.columns.joining import JoinKernel, JoinResult, Matches
    from headrace.columns.keyed import Times
    from headrace.state.files import StateFiles
    from headrace.state.groups import Numbers
    from headrace.state.runs import Chunk, Flags, RunInfo
    from headrace.state.versions import Manifest

ROWS: Final = ("left", "right")
"""The names of the runs of rows in manifests."""
MATCHES: Final = ("left matches", "right matches")
INNER: Final = Layout(hash=CODE, expires=AT)
OUTER: Final = Layout(hash=CODE, expires=AT, due=AT)
"""The rows of a side that come out without a match: they are found by their times."""


class KeptSegment(JoinSegment):
    """A chunk of a run as a segment, opened when its rows are asked for."""

    def __init__(self, run: Run, number: int) -> None:
        info = run.info.chunks[number]
        super().__init__(
            lambda: pa.Table.from_batches([self.chunk.batch]),
            count=info.rows,
            first_us=info.first_expires,
            last_us=info.last_expires,
        )
        self._run = run
        self._number = number

    @property
    def chunk(self) -> Chunk:
        """The chunk."""
        return self._run.chunk(self._number)

    def between(self, after_us: int, until_us: int) -> Numbers:
        """The rows of after < time <= until."""
        return self.chunk.due_between(after_us, until_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOperatorState:
    """The state of a join in one partition."""

    files: StateFiles
    kernel: JoinKernel

    def advance(self, version: int, rows: pa.Table, times: Times) -> Iterator[pa.Table]:
        """The output of a batch, of which `version` is the number; its state is written when this returns."""
        begun = time.perf_counter()
        versions = Versions(self.files)
        before = versions.read(version - 1)
        runs = self.open_runs(before)
        if self.kernel.keys:
            rows = self._with_codes(rows, before)
        spent = time.perf_counter() - begun
        result: JoinResult = self.kernel(rows, self.joined_state(before, runs), times)
        figures = BatchFigures("", result.late, time.perf_counter() - spent)
        over_us = [self.kernel.over_us(side, times.watermark_us) for side in (LEFT, RIGHT)]
        after, next_id = {}, before.next_id
        for side in (LEFT, RIGHT):
            added, next_id = self._identified(side, result.added[side], next_id)
            matches = [_match_rows(result.matches[side])] if len(result.matches[side].ids) else []
            for name, fresh in ((ROWS[side], added), (MATCHES[side], matches)):
                after[name] = self._merged(name, runs[name], fresh, version, over_us[side])
        manifest = replace(
            before,
            version=version,
            runs=after,
            watermark_us=times.watermark_us,
            rows=sum(run.rows for name in ROWS for run in after[name]),
            next_id=next_id,
            **figures.noted(),
        )
        versions.write(manifest, keep=before.names)
        return result.output

    def open_runs(self, manifest: Manifest) -> dict[str, list[Run]]:
        """The runs of a version; `BadState` if one is missing or damaged."""
        opened = {
            name: [Run(self.files, info, self._layout(name)) for info in manifest.runs.get(name, ())]
            for name in (*ROWS, *MATCHES)
        }
        for runs in opened.values():
            for run in runs:
                run.check()
        return opened

    def joined_state(self, manifest: Manifest, runs: dict[str, list[Run]]) -> JoinState:
        """The state as the kernel takes it."""

        def has_match(side: int, ids: Numbers) -> Flags:
            found = np.zeros(len(ids), np.bool_)
            for run in runs[MATCHES[side]]:
                for chunk, some in run.chunks_with(ids):
                    found[some] |= is_in(ids[some], chunk.hashes)
            return found

        left, right = (
            [KeptSegment(run, number) for run in runs[name] for number in range(len(run.info.chunks))]
            for name in ROWS
        )
        return JoinState((left, right), max(manifest.watermark_us, ALWAYS // 2), has_match)

    def _with_codes(self, rows: pa.Table, before: Manifest) -> pa.Table:
        """Rows whose codes are hashes with a secret seed: clients cannot choose keys that collide."""
        codes = row_hashes(rows, self.kernel.keys, before.seed_words)
        is_null = rows[CODE].is_null().to_numpy()
        return rows.set_column(rows.column_names.index(CODE), CODE, pa.array(codes, mask=is_null))

    def _identified(
        self, side: int, segments: Sequence[JoinSegment], next_id: int
    ) -> tuple[list[pa.Table], int]:
        """The rows to keep of each segment; with ids, and whether they had a match, if that matters."""
        tables = []
        for segment in segments:
            rows = segment.rows
            if self.kernel.keeps[side]:
                ids = np.arange(next_id, next_id + len(segment))
                rows = rows.append_column(ID, pa.array(ids))
                rows = rows.append_column(MATCHED, pa.array(segment.matched))
                next_id += len(segment)
            tables.append(rows)
        return tables, next_id

    def _layout(self, name: str) -> Layout:
        return OUTER if name in ROWS and self.kernel.keeps[ROWS.index(name)] else INNER

    def _merged(
        self, name: str, runs: Sequence[Run], fresh: Sequence[pa.Table], version: int, over_us: int
    ) -> tuple[RunInfo, ...]:
        """The runs with the new rows, some of them merged, and without those whose time is over."""
        layout = self._layout(name)
        alive = [run for run in runs if run.info.last_expires > over_us]
        if not fresh:
            return tuple(run.info for run in alive)
        both = [*alive, *(RunBuffer(rows, layout) for rows in fresh)]
        start = min(merge_start([run.info.rows for run in both]), len(alive))
        keys = self.kernel.keys if name in ROWS else ()
        if start < len(alive):
            return (*(run.info for run in both[:start]), *self._merge(both[start:], keys, version, over_us))
        made = (write_run(self.files, version, RunBuffer(rows, layout).sealed(), layout) for rows in fresh)
        return (*(run.info for run in alive), *(info for info in made if info is not None))

    def _merge(
        self, runs: Sequence[Run], keys: Sequence[str], version: int, over_us: int
    ) -> Iterator[RunInfo]:
        """The rows of all runs in one, without those whose time is over.

        Rows of a second key with the same code are in another run: `make_segments`.
        """
        layout = runs[0].layout
        others: list[list[pa.RecordBatch]] = []

        def first_layer() -> Iterator[pa.RecordBatch]:
            for rows in _merged_rows(runs, over_us):
                for number, segment in enumerate(make_segments(rows, keys)):
                    batch = sealed(segment.rows, layout)
                    if number == 0:
                        yield batch
                    else:
                        others.extend([] for _ in range(number - len(others)))
                        others[number - 1].append(batch)

        yield from _written(self.files, version, first_layer(), layout)
        for batches in others:
            yield from _written(self.files, version, batches, layout)


def _written(files: StateFiles, version: int, batches: Any, layout: Layout) -> Iterator[RunInfo]:
    info = write_run(files, version, batches, layout)
    if info is not None:
        yield info


def _merged_rows(runs: Sequence[Run], over_us: int) -> Iterator[pa.Table]:
    """The rows of all runs that are not over, in no order, a range of codes at a time."""
    for first, last in hash_ranges(runs):
        batches = [batch for run in runs for batch in run.between(first, last)]
        if not batches:
            continue
        # The rows of this batch have no index yet.
        names = [name for name in batches[0].schema.names if name != ORDER]
        rows = pa.Table.from_batches([batch.select(names) for batch in batches])
        yield rows.filter(pa.array(numbers(rows[AT].combine_chunks()) > over_us))


def _match_rows(matches: Matches) -> pa.Table:
    return pa.table({CODE: matches.ids, AT: matches.times_us})
