"""Offsets of many partitions in one small file, in Kafka's checkpoint format: version, count, lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.files import replace_file
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION: Final = "0"

Offsets = dict[tuple[str, int], int]


class Checkpoint:
    """One such file, and what it said last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = read_checkpoint(path)
        self._untaken = dict(self._saved)

    def take(self, key: tuple[str, int]) -> int | None:
        """What was saved of a partition before this start; only once, for a new one may get its name."""
        return self._untaken.pop(key, None)

    def holds(self, key: tuple[str, int]) -> bool:
        """Whether a start after a crash would find an offset for the partition."""
        return key in self._saved

    def save(self, offsets: Offsets) -> list[tuple[str, int]]:
        """Write the offsets, and keep those of partitions that were not taken yet; gives which ones moved."""
        current = self._untaken | offsets
        if current == self._saved:
            return []
        moved = [key for key, offset in offsets.items() if self._saved.get(key) != offset]
        write_checkpoint(self._path, current)
        self._saved = current
        return moved


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
        if version != VERSION or int(count) != len(offsets):
            raise ValueError(f"version {version} with {count} entries, of which there are {len(offsets)}")
    except ValueError as fault:
        raise StorageError(
            f"{path} is damaged ({fault}): restore it, or delete it; without it the next start takes longer, "
            "and deleted records may come back"
        ) from fault
    return offsets
