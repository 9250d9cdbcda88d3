"""Record batches on their way from the tasks to the driver, as files: where the two share a machine.

A task puts what it has encoded into a file of its own; the driver reads the files when the job is done and is
the only writer of the transaction, whatever the size of a micro-batch. No shuffle brings the batches of a
partition together, a task that Spark repeats harms nothing, and a small batch is faster too: what comes back
from Spark's own `collect` is 40 ms later.

A file is written under another name and renamed when the task is done. It ends with an index: which batch is
for which partition, and the index's size.
"""

from __future__ import annotations

import itertools
import json
import mmap
import shutil
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.client.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from headrace.columns.encoding import Encoded
    from headrace.protocol.compression import Bytes

TRAILER: Final = struct.Struct(">q")
"""The size of the index."""


class Spooled(NamedTuple):
    """A record batch and where it belongs."""

    partition: TopicPartition
    records: int
    batch: Bytes


class Spool:
    """The files of one micro-batch: a folder for each of its jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = itertools.count()

    def __enter__(self) -> Self:
        self._remove()  # what a driver left that was killed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def folder(self) -> Path:
        """A folder for the tasks of a job."""
        folder = self._folder / str(next(self._jobs))
        folder.mkdir(parents=True)
        return folder

    def _remove(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder)


def read_spool(folder: Path) -> list[Spooled]:
    """All batches of a job, in the order of its tasks and of the rows in each of them."""
    paths = sorted(folder.glob("*.spool"), key=lambda path: int(path.stem))
    return [spooled for path in paths for spooled in _read(path)]


def write_spool(folder: Path, task: int, attempt: int, encoded: Iterable[Iterable[Encoded]]) -> None:
    """What a task does with its batches."""
    path = folder / f"{task}.{attempt}.part"
    index: list[tuple[str, int, int, int]] = []
    with path.open("wb") as file:
        for batches in encoded:
            index += [(each.topic, each.partition, each.records, file.write(each.batch)) for each in batches]
        listed = json.dumps(index).encode()
        file.write(listed)
        file.write(TRAILER.pack(len(listed)))
    path.rename(folder / f"{task}.spool")


def _read(path: Path) -> Iterator[Spooled]:
    with path.open("rb") as file:
        # Not closed: the memory goes when the last batch that lies in it does.
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    end = len(content) - TRAILER.size
    (size,) = TRAILER.unpack_from(content, end)
    at = 0
    for topic, partition, records, length in json.loads(bytes(content[end - size : end])):
        yield Spooled(TopicPartition(topic, partition), records, content[at : at + length])
        at += length
