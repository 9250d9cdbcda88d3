"""What a keyed stage keeps: a file for each partition and micro-batch.

```text
<state>/stage-0/
    stage.json      the number of partitions, and what the stage computes
    3/41.arrow      what partition 3 kept behind batch 41
    late/42-3       how many rows came too late for partition 3 in batch 42
```

Batch N goes on from the file of batch N-1 and writes its own, under another name until it is whole. So a task
that runs twice, or a batch that is repeated, finds what it found before, and a crash leaves the whole file or
none. Every batch writes a file for every partition; where nothing changed it is a link to the one before. So
a file that is not there was lost, or is on another machine's disk: that is an error, and never empty state.
When batch N writes, the file of N-1 is kept for a repetition, and older ones are removed.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.errors import HeadraceError, Misuse

NOTE: Final = "stage.json"
LATE: Final = "late"
SUFFIX: Final = ".arrow"
NOTHING: Final = pa.table({})
"""Written where a kernel keeps nothing: an empty file would be one that a power failure tore."""


class BadState(HeadraceError):
    """A file of a stage's state that is missing or cannot be read."""

    @classmethod
    def missing(cls, path: Path) -> BadState:
        """The error for a file that the batch before must have written."""
        return cls(
            f"{path} is missing: the batch before wrote it, and going on without it would count its rows as "
            "never seen. It was deleted, or this machine does not see the folder of the checkpoint. Restore "
            "it, let checkpoints be in a folder that all machines see under the same path, or reset the job."
        )

    @classmethod
    def torn(cls, path: Path, fault: Exception) -> BadState:
        """The error for a file that is not whole."""
        return cls(
            f"{path} is not as it was written ({fault}): a power failure may leave such files. Restore the "
            "checkpoint, or reset the job."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateManifest:
    """What must not change while there is state."""

    partitions: int
    """Which keys a file holds depends on it, so it is not the number of cores of today."""
    outline: str
    """What the stage computes, in words that can be compared."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of the state that may be added and removed, and their types, which may not change."""


def local_folder(place: str) -> Path:
    """The folder of a place that this machine, and all machines of a cluster, see under the same path."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise Misuse(
            f"windows of this kind keep their state in files, and {place!r} is not a folder: let checkpoints "
            "be in a folder that all machines see under the same path."
        )
    return Path(parts.path)


def read_manifest(folder: Path) -> StateManifest | None:
    """What was noted when the stage was first run; None before that."""
    try:
        return StateManifest(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as fault:
        raise BadState.torn(folder / NOTE, fault) from fault


def write_manifest(folder: Path, note: StateManifest, *, batch: int) -> None:
    """Note it in the first batch of a checkpoint, and when columns change; later it has to be there."""
    if (folder / NOTE).exists():
        known = read_manifest(folder)
        if known is not None and known.columns == note.columns:
            return
    elif batch > 0:
        raise BadState.missing(folder / NOTE)
    _put(folder / NOTE, json.dumps(asdict(note)).encode())


class PartitionState:
    """The files of one partition."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._folder = folder / str(partition)
        self._late = folder / LATE
        self._partition = partition

    def read(self, batch: int) -> pa.Table | None:
        """What the batch before kept, in memory that is a file's; None if that was nothing."""
        if batch == 0:
            return None
        path = self._path(batch - 1)
        try:
            with pa.memory_map(str(path)) as file:
                state = pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            raise BadState.missing(path) from None
        except (pa.ArrowInvalid, OSError) as fault:
            raise BadState.torn(path, fault) from fault
        return state if state.num_columns else None

    def write(self, batch: int, state: pa.Table | None, attempt: int) -> None:
        """Keep this behind a batch, and remove what no repetition of it can ask for."""
        state = NOTHING if state is None else state
        aside = self._aside(batch, attempt)
        with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_file(file, state.schema) as writer:
            writer.write_table(state)
        self._place(aside, batch)

    def keep(self, batch: int, attempt: int) -> None:
        """Keep what the batch before kept."""
        if batch == 0:
            self.write(batch, None, attempt)
            return
        aside = self._aside(batch, attempt)
        link_or_copy(self._path(batch - 1), aside)
        self._place(aside, batch)

    def _aside(self, batch: int, attempt: int) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._path(batch).with_suffix(f".{attempt}.part")

    def _place(self, aside: Path, batch: int) -> None:
        aside.replace(self._path(batch))
        for version in self._versions():
            if version < batch - 1:
                self._path(version).unlink(missing_ok=True)

    def write_late(self, batch: int, rows: int) -> None:
        """Note how many rows came too late in a batch."""
        if rows:
            _put(self._late / f"{batch}-{self._partition}", str(rows).encode())

    def _versions(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob(f"*{SUFFIX}")]

    def _path(self, batch: int) -> Path:
        return self._folder / f"{batch}{SUFFIX}"


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a second name of `source`, or a copy where the file system knows no such names."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise BadState.missing(source) from None
    except OSError:
        shutil.copyfile(source, target)


def late_rows(state: str, batch: int) -> int:
    """How many rows the stages of a job left out of a batch because they came too late.

    It is known when the batch is computed. A row counts when it missed any of its windows.
    """
    files = local_folder(state).glob(f"*/{LATE}/{batch}-*")
    return sum(int(file.read_text()) for file in files)


def forget_late_rows(folder: Path, before: int) -> None:
    """Remove the counts of batches that are done."""
    for file in (folder / LATE).glob("[0-9]*-*"):
        if int(file.name.partition("-")[0]) < before:
            file.unlink(missing_ok=True)


def _put(path: Path, content: bytes) -> None:
    """Put a file in place as a whole; the process is in its name aside, for tasks may run twice at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_bytes(content)
    aside.replace(path)
