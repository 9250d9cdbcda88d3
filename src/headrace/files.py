"""Atomic replacement of files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make created, renamed and deleted files in `path` survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of `path` atomically: after a crash the file has the old content or the new one.

    A file that can be rebuilt need not be `durable`: after power loss it may then be empty.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)
