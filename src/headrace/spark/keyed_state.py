"""What a keyed stage keeps: a file for each partition and micro-batch.

```text
<state>/stage-0/
    stage.json      the number of partitions, and what the stage computes
    3/41.arrow      what partition 3 kept behind batch 41
    late/42-3       how many rows came too late for partition 3 in batch 42
```

Batch N goes on from the newest file below N and writes its own, under another name until it is whole. So a
task that runs twice, or a batch that is repeated, finds what it found before, and a crash leaves the whole
file or none. A batch that changes nothing writes nothing. When batch N writes, the file that it went on from
is kept for a repetition, and older ones are removed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.errors import HeadraceError, Misuse

NOTE: Final = "stage.json"
LATE: Final = "late"
SUFFIX: Final = ".arrow"


class BadState(HeadraceError):
    """A file of a stage's state that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What must not change while there is state."""

    partitions: int
    """Which keys a file holds depends on it, so it is not the number of cores of today."""
    outline: str
    """What the stage computes, in words that can be compared."""


def local_folder(place: str) -> Path:
    """The folder of a place that this machine, and all machines of a cluster, see under the same path."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        raise Misuse(
            f"windows of this kind keep their state in files, and {place!r} is not a folder: let checkpoints "
            "be in a folder that all machines see under the same path."
        )
    return Path(parts.path)


def read_note(folder: Path) -> Note | None:
    """What was noted when the stage was first run; None before that."""
    try:
        return Note(**json.loads((folder / NOTE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as fault:
        raise BadState(
            f"{folder / NOTE} is not as it was written ({fault}): restore it, or reset the job."
        ) from fault


def write_note(folder: Path, note: Note) -> None:
    """Note it, if that was not done before."""
    if not (folder / NOTE).exists():
        _put(folder / NOTE, json.dumps(asdict(note)).encode())


class PartitionState:
    """The files of one partition."""

    def __init__(self, folder: Path, partition: int) -> None:
        self._folder = folder / str(partition)
        self._late = folder / LATE
        self._partition = partition

    def read(self, batch: int) -> pa.Table | None:
        """What was kept before a batch, in memory that is a file's; None if nothing was."""
        before = [version for version in self._versions() if version < batch]
        if not before:
            return None
        path = self._path(max(before))
        try:
            with pa.memory_map(str(path)) as file:
                return pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid as fault:
            raise BadState(
                f"{path} is not as it was written ({fault}): a power cut may leave such files. Restore the "
                "checkpoint, or reset the job."
            ) from fault

    def write(self, batch: int, state: pa.Table, attempt: int) -> None:
        """Keep this behind a batch, and remove what no repetition of it can ask for."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(batch)
        aside = path.with_suffix(f".{attempt}.part")
        with pa.OSFile(str(aside), "wb") as file, pa.ipc.new_file(file, state.schema) as writer:
            writer.write_table(state)
        aside.replace(path)
        before = sorted(version for version in self._versions() if version < batch)
        for version in before[:-1]:
            self._path(version).unlink(missing_ok=True)

    def write_late(self, batch: int, rows: int) -> None:
        """Note how many rows came too late in a batch."""
        if rows:
            _put(self._late / f"{batch}-{self._partition}", str(rows).encode())

    def _versions(self) -> list[int]:
        return [int(path.stem) for path in self._folder.glob(f"*{SUFFIX}")]

    def _path(self, batch: int) -> Path:
        return self._folder / f"{batch}{SUFFIX}"


def late_rows(state: str, batch: int) -> int:
    """How many rows the stages of a job left out of a batch because they came too late.

    It is known when the batch is computed. A row counts when it missed any of its windows.
    """
    files = local_folder(state).glob(f"stage-*/{LATE}/{batch}-*")
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
