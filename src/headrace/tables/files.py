"""Files of versions: Arrow, sorted, uncompressed, so that whoever opens one maps it and reads nothing.

A file is written under another name, synced, and renamed: it is there as a whole or not at all. What it holds
is said in its metadata: the definition of the table, and the positions up to which the topic was read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.folders import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

METADATA: Final = b"headrace.siphash"
"""Named after the hash that versions are sorted by: a file of another order is not read."""
BASE: Final = "base"
HOT: Final = "hot"
SUFFIX: Final = ".arrow"
UNFINISHED: Final = ".new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file holds."""

    signature: str
    """Of the table's definition."""
    positions: dict[str, int]
    """The offset at which each partition is to be read on."""
    base: int | None = None
    """Of a hot file: the number of the base that it belongs to, if there is one."""
    newest_us: int | None = None
    """The newest time that a version began to count."""


def file_path(folder: Path, kind: str, batch: int) -> Path:
    """Where the file of that kind is that holds all up to and with a batch."""
    return folder / f"{kind}-{batch}{SUFFIX}"


def file_numbers(folder: Path, kind: str) -> list[int]:
    """The batches of which there are files of that kind, the newest first."""
    names = (path.stem.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*{SUFFIX}"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def write_versions(path: Path, versions: pa.Table, contents: Contents) -> None:
    """Put a file in place that survives a power cut as soon as this returns."""
    aside = path.with_suffix(UNFINISHED)
    described = {METADATA: json.dumps(asdict(contents)).encode()}
    schema = versions.schema.with_metadata(described)
    with aside.open("wb") as file:
        with pa.ipc.new_file(file, schema) as writer:
            writer.write_table(versions.replace_schema_metadata(described).combine_chunks())
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_directory(path.parent)


def read_versions(path: Path) -> tuple[pa.Table, Contents] | None:
    """The versions in a file, mapped, and what they are; None when there is none, or not a whole one."""
    try:
        versions = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        described: dict[str, Any] = json.loads((versions.schema.metadata or {})[METADATA])
        return versions.replace_schema_metadata(None), Contents(**described)
    except (FileNotFoundError, pa.ArrowInvalid, KeyError, ValueError, TypeError):
        return None
