"""Offsets of many partitions in one small file, in Kafka's checkpoint format: version, count, lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.storage.errors import StorageError
from headrace.storage.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION: Final = "0"

Offsets = dict[tuple[str, int], int]


def write_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the file at `path` whole."""
    lines = [VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    replace_file(path, ("\n".join(lines) + "\n").encode())


def read_checkpoint(path: Path) -> Offsets:
    """The offsets in the file; none when it does not exist."""
    if not path.exists():
        return {}
    try:
        version, count, *lines = path.read_text().split("\n")
        offsets = {
            (topic, int(partition)): int(offset) for topic, partition, offset in map(str.split, lines[:-1])
        }
    except ValueError as fault:
        raise StorageError(f"{path} is not a checkpoint of offsets: {fault}") from fault
    if version != VERSION or int(count) != len(offsets):
        raise StorageError(f"{path} is damaged: it says {count} entries and has {len(offsets)}")
    return offsets
