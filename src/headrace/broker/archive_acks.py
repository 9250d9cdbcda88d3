"""Acknowledgments that wait for the archive (`headrace.archive.acks`), and survive the loss of the disk.

What was appended to segments that are not in the archive yet is uploaded at once, in small objects:

    segments/TOPIC-ID/PARTITION/tails/BASE/EPOCH-FROM-TO    bytes FROM to TO of the `.log`

All appends that arrive during an upload share the next one: group commit. Consumers read a record when it is
in the archive. Each start of the broker has a larger epoch: after a restart a segment is uploaded again from
its beginning, and the objects of the latest epoch count, because a crash may have truncated the segment.
The objects of a segment are deleted when the whole segment is in the archive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.folders import replace_file
from headrace.storage.errors import ArchiveError
from headrace.storage.partition import PartitionLog
from headrace.storage.remote_segment import object_prefix
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from pathlib import Path

    from headrace.broker.broker import Broker
    from headrace.broker.topics import Partition, Topic
    from headrace.storage.archive_store import ArchiveStore
    from headrace.storage.segment import LogFile

log = logging.getLogger(__name__)

TAILS: Final = "tails/"
EPOCH_FILE: Final = "archive-epoch"
RETRY_SECONDS: Final = 0.5
PART_BYTES: Final = 8 * 2**20


class TailPart(NamedTuple):
    """Bytes of a segment that are not in the archive; the file stays open."""

    folder: str
    base_offset: int
    file: LogFile
    start: int
    end: int


class TailUploader:
    """Uploads appended records of topics with `headrace.archive.acks`."""

    def __init__(
        self, broker: Broker, store: ArchiveStore, prepare: Callable[[Topic], Awaitable[None]]
    ) -> None:
        self._prepare = prepare
        self._broker = broker
        self._store = store
        self._epoch = next_epoch(broker.config.data)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-archive-acks")
        self._dirty: set[Partition] = set()
        self._waiting: list[asyncio.Future[None]] = []
        """Waiters for the next upload."""
        self._covered: list[asyncio.Future[None]] = []
        """Waiters for the upload in progress."""
        self._uploaded: dict[Partition, dict[int, int]] = {}
        """The size of each segment of which the archive has a tail, by its base offset."""
        self._task: asyncio.Task[None] | None = None

    def appended(self, partition: Partition) -> None:
        """Called after each append to a topic with `headrace.archive.acks`."""
        self._dirty.add(partition)
        if self._task is None:
            self._task = self._broker.loop.create_task(self._run())

    async def durable(self) -> None:
        """Return when everything appended before the call is in the archive."""
        if self._dirty or self._task is not None:
            future = self._broker.loop.create_future()
            (self._waiting if self._dirty else self._covered).append(future)
            await future

    async def close(self) -> None:
        """Stop; what is not in the archive was not acknowledged."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        try:
            while self._dirty or self._waiting:
                dirty, self._dirty = self._dirty, set()
                covered, self._waiting = self._waiting, []
                self._covered += covered
                await self._upload_until_stored([each for each in dirty if not each.log.is_deleted])
                done, self._covered = self._covered, []
                for future in done:
                    if not future.done():
                        future.set_result(None)
        finally:
            self._task = None

    async def _upload_until_stored(self, partitions: list[Partition]) -> None:
        while partitions:
            results = await asyncio.gather(*map(self._upload, partitions), return_exceptions=True)
            failed = []
            for partition, fault in zip(partitions, results, strict=True):
                if fault is None or partition.log.is_deleted:
                    continue
                if not isinstance(fault, ArchiveError | OSError):
                    raise fault
                log.warning("Acknowledgments of %s-%d wait: %s", partition.topic, partition.index, fault)
                failed.append(partition)
            partitions = failed
            if failed:
                await asyncio.sleep(RETRY_SECONDS)

    async def _upload(self, partition: Partition) -> None:
        found = partition.log
        topic = self._broker.topics.get(partition.topic)
        if topic is None or not isinstance(found, PartitionLog):
            return
        folder = object_prefix(topic.id, partition.index) + TAILS
        uploaded = self._uploaded.setdefault(partition, {})
        end_offset = found.end_offset
        parts = [
            TailPart(
                folder, segment.base_offset, segment.file, uploaded.get(segment.base_offset, 0), segment.size
            )
            for segment in found.segments
            if segment.manifest is None and segment.size > uploaded.get(segment.base_offset, 0)
        ]
        if parts:
            await self._prepare(topic)
            await self._broker.loop.run_in_executor(self._executor, partial(self._put, parts))
        uploaded.update({part.base_offset: part.end for part in parts})
        found.archived(end_offset)
        partition.notify()

    def _put(self, parts: Iterable[TailPart]) -> None:
        for part in parts:
            base = part.folder + segment_name(part.base_offset, "/")
            name = f"{base}{self._epoch:015d}-{part.start:010d}-{part.end:010d}"
            if part.end - part.start <= PART_BYTES:
                self._store.put(name, os.pread(part.file.fd, part.end - part.start, part.start))
            else:
                self._store.put(name, _read(part))

    async def delete_covered(self, partition: Partition, folder: str) -> None:
        """Delete the tails of segments that are in the archive as a whole, or were deleted."""
        found = partition.log
        if not isinstance(found, PartitionLog):
            return
        is_first = partition not in self._uploaded
        if is_first and not found.waits_for_archive:
            return
        uploaded = self._uploaded.setdefault(partition, {})
        first_open = next(segment.base_offset for segment in found.segments if segment.manifest is None)
        covered = [base for base in uploaded if base < first_open]
        if not covered and not is_first:
            return
        job = partial(delete_tails, self._store, folder + TAILS, first_open)
        await self._broker.loop.run_in_executor(self._executor, job)
        for base in covered:
            del uploaded[base]


def _read(part: TailPart) -> Iterator[bytes]:
    for start in range(part.start, part.end, PART_BYTES):
        yield os.pread(part.file.fd, min(PART_BYTES, part.end - start), start)


def next_epoch(data: Path) -> int:
    """A number that is larger than that of every earlier start, also if the clock was set back."""
    path = data / EPOCH_FILE
    known = int(path.read_bytes()) if path.exists() else 0
    epoch = max(known + 1, time.time_ns() // 1_000_000)
    replace_file(path, str(epoch).encode())
    return epoch


def delete_tails(store: ArchiveStore, folder: str, first_open: int) -> None:
    """Delete the tails of all segments before the one with the base offset `first_open`. Blocks."""
    store.delete([name for name in store.list(folder) if _base_offset(name) < first_open])


def epoch_of(name: str) -> int:
    """The epoch in the name of an object."""
    return int(name.rsplit("/", 1)[1].split("-", maxsplit=1)[0])


def _base_offset(name: str) -> int:
    return int(name.rsplit("/", 2)[1])


def choose_tails(names: Iterable[str]) -> dict[int, list[str]]:
    """The objects that make up each segment, in the order of their bytes: those of its latest epoch."""
    by_base: dict[int, dict[int, list[tuple[int, int, str]]]] = {}
    for name in names:
        _, start, end = name.rsplit("/", 1)[1].split("-")
        epochs = by_base.setdefault(_base_offset(name), {})
        epochs.setdefault(epoch_of(name), []).append((int(start), int(end), name))
    return {base: _contiguous(epochs[max(epochs)]) for base, epochs in sorted(by_base.items())}


def _contiguous(parts: list[tuple[int, int, str]]) -> list[str]:
    chosen, position = [], 0
    for start, end, name in sorted(parts):
        if start != position:
            break
        chosen.append(name)
        position = end
    return chosen
