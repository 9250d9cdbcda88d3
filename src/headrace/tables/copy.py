"""The copy of a table, batch by batch, in two sorted files: a large base, and what came since then.

```text
tables/users/
    base-40.arrow   all that can still be asked for, up to batch 40
    hot-57.arrow    the versions of batches 41 to 57
    hot-58.arrow    the same and batch 58, which runs now
```

A lookup has two files to look into, never a list of them. The hot file is written anew by each batch that
changes the table, and merged into a new base when it has grown: that is done before a batch begins, when the
one before it is never run again. The files of the batch before stay until then, so a batch that is repeated
begins where it began the first time. Files that are torn, or were made by another definition of the table,
are passed over. A copy that is new, or of another definition, is made from the first record of the topic on.
One that was lost is an error: compaction may have removed versions that it had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.tables.files import (
    BASE,
    HOT,
    SUFFIX,
    UNFINISHED,
    Contents,
    file_numbers,
    file_path,
    read_versions,
    write_versions,
)
from headrace.tables.versions import merged_versions, needed_versions, version_schema

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from headrace.tables.changes import Changes, Positions
    from headrace.tables.definition import Definition

HOT_ROWS: Final = 16_384
"""A hot file smaller than this is left to grow."""
HOT_SHARE: Final = 32
"""A hot file is merged when it is this part of the base: it is written by each batch, the base is not."""


class TableCopyLost(HeadraceError):
    """The copy of a table is not the one that the batch before left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The files that hold the table at a batch, as paths; what is not there is None."""

    base: str | None = None
    hot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A file, open."""

    batch: int
    path: Path
    versions: pa.Table
    contents: Contents


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The table after a batch."""

    batch: int
    base: _Part | None = None
    hot: _Part | None = None

    @property
    def parts(self) -> list[_Part]:
        return [part for part in (self.base, self.hot) if part is not None]

    @property
    def positions(self) -> Positions:
        written = self.parts[-1].contents.positions if self.parts else {}
        return {int(partition): offset for partition, offset in written.items()}

    @property
    def newest_us(self) -> int | None:
        times = [part.contents.newest_us for part in self.parts if part.contents.newest_us is not None]
        return max(times, default=None)


class TableCopy:
    """The copy of one table in one folder; one process has it at a time."""

    def __init__(
        self, folder: Path, definition: Definition, read: Callable[[Positions, Positions], Changes]
    ) -> None:
        self._folder = folder
        self._definition = definition
        self._read = read
        self._state: _State | None = None

    def advance(self, batch: int, end: Positions, *, start: Positions | None = None) -> Current:
        """The files that hold the table up to `end`, which is what batch number `batch` sees.

        A partition that `end` does not name stays where it was. Batches are asked for in their order; the
        last one may be asked for again, also by another process. `start` is where the batch begins, if one
        before it had the table: `TableCopyLost` if the copy does not reach it.
        """
        before = self._before(batch)
        self._check_reaches(before, start or {})
        before = self._fold(before)
        after = self._moved(before, batch, before.positions | end)
        self._state = after
        self._remove_all_but([*before.parts, *after.parts])
        return Current(
            base=str(after.base.path) if after.base else None, hot=str(after.hot.path) if after.hot else None
        )

    def _before(self, batch: int) -> _State:
        if self._state is not None and self._state.batch < batch:
            return self._state
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._opened(batch - 1)

    def _check_reaches(self, state: _State, start: Positions) -> None:
        is_behind = any(state.positions.get(partition, -1) < at for partition, at in start.items())
        if is_behind and not self._is_of_another_definition():
            raise TableCopyLost(
                f"{self._folder} does not hold the table of {self._definition.topic!r} as the last batch "
                "left it: files were deleted, or this machine does not see the folder of the checkpoint. "
                "Reading the topic again would lack the versions that compaction has removed. "
                "Restore the folder, or reset the job with `headrace job reset`."
            )

    def _is_of_another_definition(self) -> bool:
        paths = (
            file_path(self._folder, kind, n) for kind in (BASE, HOT) for n in file_numbers(self._folder, kind)
        )
        found = [contents for contents in map(read_versions, paths) if contents is not None]
        return any(contents.signature != self._definition.signature for _, contents in found)

    def _opened(self, batch: int) -> _State:
        """The newest state that is whole, of those that are not newer than `batch`."""
        found = [(number, kind) for kind in (BASE, HOT) for number in file_numbers(self._folder, kind)]
        # Of a base and a hot file of the same batch, the base holds both.
        for number, kind in sorted(found, key=lambda each: (-each[0], each[1])):
            if number <= batch and (part := self._part(kind, number)) is not None:
                if kind == BASE:
                    return _State(batch=batch, base=part)
                base = None if part.contents.base is None else self._part(BASE, part.contents.base)
                if part.contents.base is None or base is not None:
                    return _State(batch=batch, base=base, hot=part)
        return _State(batch=batch)

    def _part(self, kind: str, number: int) -> _Part | None:
        path = file_path(self._folder, kind, number)
        found = read_versions(path)
        if found is None or found[1].signature != self._definition.signature:
            return None
        return _Part(batch=number, path=path, versions=found[0], contents=found[1])

    def _moved(self, before: _State, batch: int, end: Positions) -> _State:
        if end == before.positions:
            return _State(batch=batch, base=before.base, hot=before.hot)
        base = before.base.batch if before.base else None
        positions = {str(partition): offset for partition, offset in sorted(end.items())}
        written = self._part(HOT, batch)
        if written is not None and (written.contents.base, written.contents.positions) == (base, positions):
            # The batch runs again. By now compaction may have removed records that it saw.
            return _State(batch=batch, base=before.base, hot=written)
        changes = self._read(before.positions, end)
        hot = merged_versions(before.hot.versions, changes.versions) if before.hot else changes.versions
        times = [time for time in (before.newest_us, changes.newest_us) if time is not None]
        contents = Contents(
            signature=self._definition.signature,
            positions=positions,
            base=base,
            newest_us=max(times, default=None),
        )
        return _State(batch=batch, base=before.base, hot=self._write(HOT, batch, hot, contents))

    def _fold(self, state: _State) -> _State:
        """The same state with the hot file merged into the base, if it has grown enough for that."""
        hot, base = state.hot, state.base
        size = base.versions.num_rows if base else 0
        if hot is None or hot.versions.num_rows < max(HOT_ROWS, size // HOT_SHARE):
            return state
        old = base.versions if base else version_schema(self._definition).empty_table()
        versions = merged_versions(old, hot.versions)
        if state.newest_us is not None:
            versions = needed_versions(versions, state.newest_us - self._definition.keep_us)
        contents = Contents(
            signature=self._definition.signature,
            positions=hot.contents.positions,
            newest_us=state.newest_us,
        )
        folded = self._write(BASE, state.batch, versions, contents)
        return _State(batch=state.batch, base=folded)

    def _write(self, kind: str, batch: int, versions: pa.Table, contents: Contents) -> _Part:
        path = file_path(self._folder, kind, batch)
        write_versions(path, versions, contents)
        part = self._part(kind, batch)
        assert part is not None, "what was written and synced can be read"
        return part

    def _remove_all_but(self, parts: list[_Part]) -> None:
        # Tasks that still have a removed file mapped can read on.
        kept = {part.path for part in parts}
        for path in self._folder.iterdir():
            if path not in kept and path.suffix in (SUFFIX, UNFINISHED):
                path.unlink()
