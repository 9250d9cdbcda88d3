"""Offsets of partitions in a file, in Kafka's checkpoint format: version, count, one line per partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.folders import replace_file
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION: Final = "0"

Offsets = dict[tuple[str, int], int]


class OffsetCheckpoint:
    """A checkpoint file, and its last saved content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = read_checkpoint(path)
        self._unclaimed = dict(self._saved)

    def take(self, key: tuple[str, int]) -> int | None:
        """The offset of a partition from before this start. Once: a new topic may have the same name."""
        return self._unclaimed.pop(key, None)

    def holds(self, key: tuple[str, int]) -> bool:
        """Whether the file has an offset of the partition."""
        return key in self._saved

    def save(self, offsets: Offsets) -> list[tuple[str, int]]:
        """Save the offsets, and keep those of partitions that are not open yet; returns what changed."""
        current = self._unclaimed | offsets
        if current == self._saved:
            return []
        changed = [key for key, offset in offsets.items() if self._saved.get(key) != offset]
        write_checkpoint(self._path, current)
        self._saved = current
        return changed


def write_checkpoint(path: Path, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the file at `path`."""
    lines = [VERSION, str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    replace_file(path, ("\n".join(lines) + "\n").encode())


def read_checkpoint(path: Path) -> Offsets:
    """The offsets in the file; empty if it does not exist."""
    if not path.exists():
        return {}
    try:
        version, count, *lines = path.read_text().split("\n")
        offsets = {
            (topic, int(partition)): int(offset) for topic, partition, offset in map(str.split, lines[:-1])
        }
        if version != VERSION or int(count) != len(offsets):
            raise ValueError(f"version {version} with {count} entries, of which there are {len(offsets)}")
    except ValueError as fault:
        raise StorageError(
            f"{path} is damaged ({fault}): restore it, or delete it; without it the next start takes longer, "
            "and deleted records may come back"
        ) from fault
    return offsets
