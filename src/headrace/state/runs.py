"""Runs: immutable files of rows, sorted by a hash of their key.

```text
38-5f0c….arrow   an Arrow file; each record batch is a chunk
  chunk 0   hash │ due │ expires │ order │ columns of the operator      rows in order of hash
  chunk 1   …                                                           no hash is in two chunks
```

A reader maps the file and looks up hashes by binary search, so that it touches a few pages of a large run.
`order` lists the rows of a chunk by `due`: rows that are due within a span of time are found the same way.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.state.files import BadState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.state.files import StateFiles

    Numbers: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

ORDER: Final = "_headrace_order"
SUFFIX: Final = ".arrow"
CHUNK_ROWS: Final = 1 << 20
CHUNK_BYTES: Final = 1 << 26
"""A chunk has about this many rows or bytes at most: so much is in memory at once while runs are merged."""
CHECKED_BYTES: Final = 1 << 20
"""Smaller runs have a checksum, which is verified when they are opened; of larger ones the length is."""
SYNCED_BYTES: Final = 1 << 26
"""Runs from this size on, which are written seldom, are synced to disk."""
NEVER: Final = (1 << 63) - 1
"""The due time of rows that no operator has to look at."""
ALWAYS: Final = -(1 << 63)
"""Before every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of a run that the store uses: 64-bit numbers or timestamps without nulls."""

    hash: str
    expires: str
    """When a row is no longer needed."""
    due: str | None = None
    """When an operator has to look at a row though no new row has its key."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all of them."""
        return (self.hash, self.expires, *([] if self.due is None else [self.due, ORDER]))


class ChunkInfo(NamedTuple):
    """What is known of a chunk without opening it."""

    rows: int
    first_hash: int
    last_hash: int
    first_due: int
    last_due: int
    first_expires: int
    last_expires: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as a manifest lists it."""

    name: str
    byte_size: int
    checksum: int | None
    """None for a large run."""
    chunks: tuple[ChunkInfo, ...]

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def last_expires(self) -> int:
        """When none of its rows is needed any more."""
        return max(chunk.last_expires for chunk in self.chunks)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "byte_size": self.byte_size,
            "checksum": self.checksum,
            "chunks": self.chunks,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The run of `to_json`."""
        chunks = tuple(ChunkInfo(*chunk) for chunk in data["chunks"])
        return cls(name=data["name"], byte_size=data["byte_size"], checksum=data["checksum"], chunks=chunks)


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows in order of hash. Its columns are read from the file when they are used."""

    batch: pa.RecordBatch
    layout: Layout

    @cached_property
    def hashes(self) -> Numbers:
        """The hash of each row."""
        return numbers(self.batch.column(self.layout.hash))

    @cached_property
    def expires(self) -> Numbers:
        """When each row expires."""
        return numbers(self.batch.column(self.layout.expires))

    @cached_property
    def due(self) -> Numbers:
        """When each row is due."""
        assert self.layout.due is not None, "rows of this kind are never due"
        return numbers(self.batch.column(self.layout.due))

    @cached_property
    def group_starts(self) -> Numbers:
        """The first row of each hash."""
        return np.flatnonzero(stretch_starts(self.hashes))

    def due_between(self, after: int, until: int) -> Numbers:
        """The rows of after < due <= until, in order of time."""
        order = self.batch.column(ORDER).to_numpy()
        due = self.due
        begin = bisect_right(order, after, key=due.__getitem__)
        end = bisect_right(order, until, lo=begin, key=due.__getitem__)
        return np.asarray(order[begin:end], np.int64)

    def ranges(self, hashes: Numbers) -> tuple[Numbers, Numbers]:
        """The rows of each of the hashes, from the first to the one after the last."""
        begins = np.searchsorted(self.hashes, hashes, side="left")
        ends = begins.copy()
        found = np.flatnonzero(begins < len(self.hashes))
        found = found[self.hashes[begins[found]] == hashes[found]]
        ends[found] = np.searchsorted(self.hashes, hashes[found], side="right")
        return begins, ends


class Run:
    """A run that is opened when a chunk of it is read."""

    def __init__(self, files: StateFiles, info: RunInfo, layout: Layout) -> None:
        self.info = info
        self._files = files
        self.layout = layout
        self._chunks: dict[int, Chunk] = {}

    def chunk(self, number: int) -> Chunk:
        """The chunk of that number."""
        if number not in self._chunks:
            try:
                batch = self._reader.get_batch(number)
            except (pa.ArrowInvalid, OSError) as fault:
                raise BadState.torn(self._path, fault) from fault
            self._chunks[number] = Chunk(batch, self.layout)
        return self._chunks[number]

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, in order of hash."""
        return map(self.chunk, range(len(self.info.chunks)))

    def chunks_with(self, hashes: Numbers) -> Iterator[tuple[Chunk, slice]]:
        """The chunks that may have some of the sorted hashes, each with the part of the hashes."""
        for number, chunk in enumerate(self.info.chunks):
            begin = int(np.searchsorted(hashes, chunk.first_hash, side="left"))
            end = int(np.searchsorted(hashes, chunk.last_hash, side="right"))
            if begin < end:
                yield self.chunk(number), slice(begin, end)

    def between(self, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """The rows of first <= hash <= last."""
        for number, info in enumerate(self.info.chunks):
            if info.first_hash > last or info.last_hash < first:
                continue
            chunk = self.chunk(number)
            begin = int(np.searchsorted(chunk.hashes, first, side="left"))
            end = int(np.searchsorted(chunk.hashes, last, side="right"))
            yield chunk.batch.slice(begin, end - begin)

    def check(self) -> None:
        """Raise `BadState` if the file is missing or damaged, as far as that is known without reading it."""
        self._reader  # noqa: B018  opening it checks it

    @property
    def _path(self) -> str:
        return f"{self._files}/{self.info.name}"

    @cached_property
    def _reader(self) -> pa.RecordBatchFileReader:
        data = self._files.map(self.info.name)
        if data.size != self.info.byte_size:
            raise BadState.torn(self._path, f"it has {data.size} bytes, not {self.info.byte_size}")
        if self.info.checksum is not None and zlib.crc32(data) != self.info.checksum:
            raise BadState.torn(self._path, "its checksum differs")
        try:
            return pa.ipc.open_file(pa.BufferReader(data))
        except (pa.ArrowInvalid, OSError) as fault:
            raise BadState.torn(self._path, fault) from fault


class RunBuffer(Run):
    """The rows of a batch as a run that has not been written."""

    def __init__(self, rows: pa.Table, layout: Layout) -> None:
        chunks = [Chunk(single_batch(part), layout) for part in divided(rows, layout)]
        infos = tuple(map(chunk_info, chunks))
        super().__init__(_NO_FILES, RunInfo(name="", byte_size=0, checksum=None, chunks=infos), layout)
        self._chunks = dict(enumerate(chunks))

    def sealed(self) -> Iterator[pa.RecordBatch]:
        """Its chunks as they are written."""
        return (sealed(pa.Table.from_batches([chunk.batch]), self.layout) for chunk in self.chunks())


_NO_FILES: Any = None


def write_run(
    files: StateFiles, version: int, batches: Iterable[pa.RecordBatch], layout: Layout
) -> RunInfo | None:
    """Write chunks that `sealed` made, in order of hash; None if there are none."""
    name = f"{version}-{uuid4().hex}{SUFFIX}"
    chunks: list[ChunkInfo] = []
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return None
    with files.create(name) as file, pa.ipc.new_file(file, first.schema) as writer:
        for batch in chain([first], rest):
            writer.write_batch(batch)
            chunks.append(chunk_info(Chunk(batch, layout)))
    data = files.map(name)
    checksum = zlib.crc32(data) if data.size < CHECKED_BYTES else None
    if data.size >= SYNCED_BYTES:
        files.sync(name)
    return RunInfo(name=name, byte_size=data.size, checksum=checksum, chunks=tuple(chunks))


def chunk_info(chunk: Chunk) -> ChunkInfo:
    """What a manifest says of a chunk."""
    has_due = chunk.layout.due is not None
    return ChunkInfo(
        rows=chunk.batch.num_rows,
        first_hash=int(chunk.hashes[0]),
        last_hash=int(chunk.hashes[-1]),
        first_due=int(chunk.due.min()) if has_due else NEVER,
        last_due=int(chunk.due.max()) if has_due else NEVER,
        first_expires=int(chunk.expires.min()),
        last_expires=int(chunk.expires.max()),
    )


def sealed(rows: pa.Table, layout: Layout) -> pa.RecordBatch:
    """Sorted rows as a chunk: one record batch, with the order by due time."""
    if layout.due is not None:
        due = numbers(rows[layout.due])
        # Rows of a group have the same time: there are fewer stretches of equal times than rows.
        starts = np.flatnonzero(stretch_starts(due))
        order = np.argsort(due[starts], kind="stable")
        ends = np.append(starts[1:], len(due))
        rows = rows.append_column(ORDER, pa.array(expanded(starts[order], ends[order]).astype(np.int32)))
    return single_batch(rows)


def divided(rows: pa.Table, layout: Layout) -> Iterator[pa.Table]:
    """Sorted rows in chunks; rows of one hash stay together."""
    size = _chunk_rows(rows.num_rows, rows.nbytes)
    if rows.num_rows <= size:
        if rows.num_rows:
            yield rows
        return
    hashes = numbers(rows[layout.hash])
    begin = 0
    while begin < len(hashes):
        end = min(begin + size, len(hashes))
        end = int(np.searchsorted(hashes, hashes[end - 1], side="right"))
        yield rows.slice(begin, end - begin)
        begin = end


def _chunk_rows(rows: int, size_bytes: int) -> int:
    """How many rows a chunk is to have, if `rows` have a size."""
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES * rows // max(1, size_bytes))) if rows else CHUNK_ROWS


def hash_ranges(runs: Sequence[Run]) -> Iterator[tuple[int, int]]:
    """Ranges of hashes, first and last, that all runs together have about a chunk of rows of."""
    written = [run.info for run in runs if run.info.byte_size]
    size = _chunk_rows(sum(info.rows for info in written), sum(info.byte_size for info in written))
    step = max(1, size // 8)
    samples = [chunk.hashes[::step] for run in runs if run.info.rows > step for chunk in run.chunks()]
    merged = np.sort(np.concatenate(samples)) if samples else np.empty(0, np.int64)
    first = ALWAYS
    for boundary in merged[8::8].tolist():
        if boundary > first:
            yield first, boundary - 1
            first = boundary
    yield first, NEVER


def numbers(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """A column of 64-bit numbers or times without nulls, in its own memory if it is in one piece."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(_chunks(column))
    return np.asarray(column.view(pa.int64()).to_numpy())


def single_batch(rows: pa.Table) -> pa.RecordBatch:
    """A table as one record batch."""
    arrays = [
        column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(_chunks(column))
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)


def _chunks(column: pa.ChunkedArray) -> list[pa.Array]:
    return column.chunks or [pa.array([], column.type)]


def expanded(begins: Numbers, ends: Numbers) -> Numbers:
    """The positions of all ranges, one after the other.

    >>> expanded(np.array([3, 7]), np.array([5, 8])).tolist()
    [3, 4, 7]
    """
    lengths = ends - begins
    stops = np.cumsum(lengths)
    total = int(stops[-1]) if len(stops) else 0
    return np.asarray(np.arange(total) + np.repeat(begins - (stops - lengths), lengths))


def stretch_starts(values: Numbers) -> Flags:
    """Where a value differs from the one before; the first one does."""
    starts = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts


def distinct(values: Numbers) -> Numbers:
    """Each value once, sorted. `np.unique` hashes numbers, which takes twenty times as long."""
    ordered = np.sort(values)
    return ordered[stretch_starts(ordered)]


def is_in(values: Numbers, among: Numbers) -> Flags:
    """Whether each value is one of `among`, which is sorted."""
    if not len(among):
        return np.zeros(len(values), np.bool_)
    places = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return np.asarray(among[places] == values)
