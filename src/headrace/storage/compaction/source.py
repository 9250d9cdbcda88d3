"""The batches of a closed segment, read in pieces of bounded size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import HEADER_BYTES, MIN_LENGTH, BatchHeader, check_batch, read_header
from headrace.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.storage.compaction.throttle import Throttle

CHUNK_BYTES: Final = 1024 * 1024


def read_batches(
    path: Path, throttle: Throttle, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Header and bytes of each batch in the file, checked; the bytes are good until the next is asked for.

    No more than `chunk_bytes`, or one batch where that is larger, is in memory. A batch that is torn or fails
    its checksum raises `CorruptBatch`: a closed segment has none, unless the disk lost it.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            buffer = memoryview(os.pread(file.fileno(), chunk_bytes, position))
            throttle.spend(len(buffer))
            used = 0
            for header, batch in _whole_batches(buffer):
                yield header, batch
                used += header.size
            if used == 0:
                chunk_bytes = _needed_bytes(path, buffer, position, size)
            position += used


def _whole_batches(buffer: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if header.length < MIN_LENGTH or position + header.size > len(buffer):
            return
        batch = buffer[position : position + header.size]
        check_batch(batch, header)
        yield header, batch
        position += header.size


def _needed_bytes(path: Path, buffer: memoryview, position: int, size: int) -> int:
    """How much to read for the batch that did not fit into `buffer`."""
    if len(buffer) >= HEADER_BYTES:
        header = read_header(buffer)
        if header.length >= MIN_LENGTH and len(buffer) < header.size <= size - position:
            return header.size
    raise CorruptBatch(f"{path} holds no whole batch at {position}: restore it, or delete the segment")
