"""The rows of a batch on their way from tasks to sinks: staged by tasks, committed by the driver.

```text
 task 0   rows ──▶ parts ──▶ a file next to the checkpoint ──▶ token ─┐
                        └──▶ the target itself (COPY, Parquet) ───────┤   driver: commit(batch, tokens)
 task 1   few rows ─────────────────────────────────────────▶ token ──┘
```

A task divides its rows into parts of bounded size. The rows of a small task are in its token: the driver of a
small batch has them at once. A larger part is a file, and sinks that can (`TaskStaging`) prepare it in their
target too. The driver holds one part at a time, so its memory does not depend on the size of the batch.

The target may be away while tasks stage, and what they prepared may be lost: the file is what counts, and the
driver writes from it what the target does not have. A batch is therefore computed once, however often its
commit is retried. Files of a failed attempt of a task have other names, and are deleted with the batch.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.folders import local_path
from headrace.sinks.sink import TaskStaging

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyarrow.fs import FileSystem

    from headrace.sinks.sink import Sink, StagingContext, TaskStager

INLINE_BYTES: Final = 1 << 20
"""The most bytes of rows that a task puts into its token."""
PART_BYTES: Final = 32 << 20
"""The size of a part, which a task and the driver hold in memory as a whole."""
TOKENS: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("rows", pa.int64()),
        ("content", pa.binary()),
        ("file", pa.string()),
        ("tokens", pa.string()),
    ]
)
"""The tokens of a task, one row for each part: its rows (an Arrow stream) or their file, and what sinks
return for it, as JSON."""


class StagedRowsLost(HeadraceError):
    """The file of a part is missing: the batch must be computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """A part of the rows of a task."""

    rows: int
    table: pa.Table | None = field(default=None, repr=False)
    file: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)
    """What sinks have prepared for it in their targets, by the name of the sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows that a sink writes at a time: a part, or several small ones."""

    first: int
    """The ordinal of its first row in the batch."""
    size: int
    """The number of its rows, with rejected ones."""
    token: str | None
    """What the sink's tasks have prepared for these rows; None if its rows must be read."""
    parts: tuple[StagedPart, ...]
    rejected: frozenset[int]

    def __len__(self) -> int:
        return self.size - len(self.rejected)

    @property
    def ordinals(self) -> pa.Array:
        """The ordinal of each row in the batch: rows are rejected by it."""
        everything = np.arange(self.first, self.first + self.size)
        return pa.array(np.setdiff1d(everything, np.fromiter(self.rejected, np.int64)))

    def by_ordinal(self, reasons: Mapping[int, str]) -> dict[int, str]:
        """The reasons of rejected rows by their ordinals; they are given by the row's index in the chunk."""
        ordinals = self.ordinals
        return {ordinals[index].as_py(): reason for index, reason in reasons.items()}

    def read(self) -> pa.Table:
        """The rows."""
        rows = pa.concat_tables([_read(part) for part in self.parts])
        return rows.take(pc.subtract(self.ordinals, self.first)) if self.rejected else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """The rows of a batch, as a sink commits them: those of task 0 first."""

    schema: pa.Schema
    parts: Sequence[StagedPart]
    sink: str = ""
    """The name of the sink whose tokens count."""
    rejected: frozenset[int] = frozenset()
    """The ordinals of rows that are left out."""
    traceparent: str | None = None
    """The span of the batch, if traces are exported: what requests to other services carry."""

    @classmethod
    def of(cls, rows: pa.Table) -> StagedBatch:
        """A batch of rows in memory."""
        return cls(schema=rows.schema, parts=[StagedPart(rows=len(rows), table=rows)] if len(rows) else [])

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts) - len(self.rejected)

    def without(self, rejected: Collection[int]) -> StagedBatch:
        """The batch without rejected rows."""
        return replace(self, rejected=self.rejected | frozenset(rejected))

    @property
    def is_large(self) -> bool:
        """Whether tasks staged parts, and may have prepared rows in the target."""
        return any(part.table is None for part in self.parts)

    @property
    def tokens(self) -> list[str]:
        """What the sink's tasks have prepared, used or not."""
        return [part.tokens[self.sink] for part in self.parts if self.sink in part.tokens]

    def __iter__(self) -> Iterator[Chunk]:
        """The chunks in the order of tasks and rows; small parts are joined."""
        first, waiting = 0, _Waiting(0)
        for part in self.parts:
            if part.table is None or self.sink in part.tokens or not waiting.has_room(part):
                yield from self._chunk(waiting)
                waiting = _Waiting(first)
            first += part.rows
            if part.table is not None and self.sink not in part.tokens:
                waiting.add(part)
            else:
                alone = _Waiting(first - part.rows)
                alone.add(part)
                yield from self._chunk(alone)
                waiting = _Waiting(first)
        yield from self._chunk(waiting)

    def take(self, ordinals: Iterable[int]) -> pa.Table:
        """The rows with these ordinals, in ascending order."""
        wanted = np.array(sorted(ordinals), np.int64)
        found, first = [self.schema.empty_table()], 0
        for part in self.parts:
            here = wanted[(wanted >= first) & (wanted < first + part.rows)] - first
            if len(here):
                found.append(_read(part).take(pa.array(here)))
            first += part.rows
        return pa.concat_tables(found)

    @property
    def whole(self) -> Chunk:
        """All rows in one chunk: for sinks that must see a batch as a whole, in memory."""
        size = sum(part.rows for part in self.parts)
        return Chunk(first=0, size=size, token=None, parts=tuple(self.parts), rejected=self.rejected)

    def _chunk(self, waiting: _Waiting) -> Iterator[Chunk]:
        end = waiting.first + waiting.rows
        rejected = frozenset(each for each in self.rejected if waiting.first <= each < end)
        if waiting.rows > len(rejected):
            yield Chunk(
                first=waiting.first,
                size=waiting.rows,
                token=None if rejected else waiting.parts[0].tokens.get(self.sink),
                parts=tuple(waiting.parts),
                rejected=rejected,
            )


class _Waiting:
    """Parts that become one chunk."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.parts: list[StagedPart] = []
        self.rows = 0
        self._bytes = 0

    def add(self, part: StagedPart) -> None:
        self.parts.append(part)
        self.rows += part.rows
        self._bytes += 0 if part.table is None else part.table.nbytes

    def has_room(self, part: StagedPart) -> bool:
        return part.table is not None and self._bytes + part.table.nbytes <= PART_BYTES


def _read(part: StagedPart) -> pa.Table:
    if part.table is not None:
        return part.table
    assert part.file is not None
    try:
        files, path = file_system(part.file)
        with files.open_input_file(path) as file:
            return pa.ipc.open_stream(file).read_all()
    except FileNotFoundError as fault:
        raise StagedRowsLost(
            f"{part.file} is missing: a task has staged rows there, and this machine does not see them. Put "
            "the checkpoints of a cluster into a folder or an object store that all machines see."
        ) from fault


_SCHEMES: Final = {"s3a": "s3", "s3n": "s3"}
"""Names that Hadoop has for the schemes of Arrow."""


def file_system(location: str) -> tuple[FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    from pyarrow import fs

    path = local_path(location)
    if path is not None:
        return fs.LocalFileSystem(), str(path)
    scheme, _, rest = location.partition("://")
    files, place = fs.FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{rest}")
    return files, place


class StagingFolder:
    """The folder of the staged files of a job, next to its checkpoint; only its driver deletes in it."""

    def __init__(self, location: str) -> None:
        self._location: str | None = location
        try:
            file_system(location)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError):
            # Hadoop has other file systems than Arrow: the rows of tasks are all in their tokens then.
            self._location = None
        self.delete()

    def of_batch(self, batch: int) -> str | None:
        """The folder of a batch; None if tasks cannot write files."""
        return None if self._location is None else f"{self._location}/{batch}"

    def delete(self) -> None:
        """Delete all files: a batch is over, or a driver was killed."""
        if self._location is None:
            return
        path = local_path(self._location)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            return
        files, place = file_system(self._location)
        files.delete_dir_contents(place, missing_dir_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStaging:
    """Stages the rows of a task for all sinks of a job, in one pass."""

    sinks: tuple[TaskStaging, ...]
    """Those that prepare rows in their targets. A password in `url=` is copied to the tasks with its sink:
    sinks that only the driver opens are not among them."""
    keeps_rows: bool
    """Whether the driver may read the rows of any part."""
    context: StagingContext
    inline_bytes: int = INLINE_BYTES
    part_bytes: int = PART_BYTES

    @classmethod
    def of(
        cls,
        sinks: Sequence[Sink],
        context: StagingContext,
        *,
        inline_bytes: int = INLINE_BYTES,
        part_bytes: int = PART_BYTES,
    ) -> Self:
        """The staging for these sinks."""
        preparing = tuple(sink for sink in sinks if isinstance(sink, TaskStaging))
        return cls(
            sinks=preparing,
            keeps_rows=len(preparing) < len(sinks) or any(sink.reads_staged_rows for sink in preparing),
            context=context,
            inline_bytes=inline_bytes,
            part_bytes=part_bytes,
        )

    def stage(
        self, batches: Iterable[pa.RecordBatch], *, task: int, folder: str | None
    ) -> Iterator[pa.RecordBatch]:
        """The tokens of the task, one row for each part.

        `folder` is that of the batch; without it, all rows are in the tokens.
        """
        with ExitStack() as stack:
            targets = _Targets(self, stack)
            parts = self._parts(batches)
            for number, rows in enumerate(parts):
                if folder is None or (number == 0 and rows.nbytes <= self.inline_bytes):
                    yield _token(task, rows, content=_as_stream(rows))
                    continue
                tokens = targets.stage(rows)
                file = None
                if targets.needs_file(tokens):
                    file = f"{folder}/{task}-{number}-{uuid4().hex[:12]}.arrow"
                    _write(file, rows)
                yield _token(task, rows, file=file, tokens=tokens)

    def _parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        waiting: list[pa.RecordBatch] = []
        size = 0
        for given in batches:
            if not given.num_rows:
                continue
            # Operators may name columns by position, and a session has its own time zone.
            batch = pa.Table.from_arrays(given.columns, self.context.schema.names)
            rows = batch.cast(self.context.schema)
            if waiting and size + rows.nbytes > self.part_bytes:
                yield pa.concat_tables(waiting)
                waiting, size = [], 0
            waiting.append(rows)
            size += rows.nbytes
        if waiting:
            yield pa.concat_tables(waiting)


class _Targets:
    """The sinks of a task that prepare rows in their targets, opened with the first large part."""

    def __init__(self, staging: RowStaging, stack: ExitStack) -> None:
        self._staging = staging
        self._waiting = list(staging.sinks)
        self._stack = stack
        self._stagers: dict[str, TaskStager] = {}

    def stage(self, rows: pa.Table) -> dict[str, str]:
        """What each sink returns for the rows."""
        for sink in self._waiting:
            self._open(sink)
        self._waiting = []
        tokens = {name: self._stage(name, rows) for name in list(self._stagers)}
        return {name: token for name, token in tokens.items() if token is not None}

    def needs_file(self, tokens: Mapping[str, str]) -> bool:
        """Whether the driver reads the rows, or may have to."""
        return self._staging.keeps_rows or any(sink.name not in tokens for sink in self._staging.sinks)

    def _open(self, sink: TaskStaging) -> None:
        try:
            stager = sink.open_stager(self._staging.context)
        except HeadraceError:
            return  # the driver opens the target too, and reports what is wrong
        self._stack.callback(stager.close)
        self._stagers[sink.name] = stager

    def _stage(self, name: str, rows: pa.Table) -> str | None:
        try:
            return self._stagers[name].stage(rows)
        except HeadraceError:
            del self._stagers[name]
            return None


def _write(location: str, rows: pa.Table) -> None:
    """Write a file. It need not be durable: a batch whose driver or task dies is staged again."""
    files, path = file_system(location)
    is_local = local_path(location) is not None
    if is_local:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    options = pa.ipc.IpcWriteOptions(compression=None if is_local else "lz4")
    with files.open_output_stream(path) as file, pa.ipc.new_stream(file, rows.schema, options=options) as out:
        out.write_table(rows)


def _as_stream(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as writer:
        writer.write_table(rows)
    written: bytes = out.getvalue().to_pybytes()
    return written


def _token(
    task: int,
    rows: pa.Table,
    *,
    content: bytes | None = None,
    file: str | None = None,
    tokens: Mapping[str, str] | None = None,
) -> pa.RecordBatch:
    values: list[Any] = [task, len(rows), content, file, json.dumps(tokens or {})]
    arrays = [pa.array([value], column.type) for value, column in zip(values, TOKENS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=TOKENS)


def read_tokens(tokens: pa.Table, schema: pa.Schema) -> StagedBatch:
    """The batch that the tokens of all its tasks are of."""
    parts = [
        StagedPart(
            rows=row["rows"],
            table=None if row["content"] is None else pa.ipc.open_stream(row["content"]).read_all(),
            file=row["file"],
            tokens=json.loads(row["tokens"]),
        )
        for row in tokens.sort_by("task").to_pylist()
    ]
    return StagedBatch(schema=schema, parts=parts)
