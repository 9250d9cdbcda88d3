"""Replaces segments by cleaned ones, atomically also in a crash.

    <base>.log.cleaned …    written and synced by the compactor
    <base>.log.swap …       renamed, one by one
    <base>.swap             the plan: the segments to replace, and their new files. It commits the swap

The steps after the plan can be repeated: delete the other old segments, rename the `.swap` files, delete the
plan. When a partition is opened, a swap with a plan is completed, and the files of others are deleted.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from headrace.files import sync_directory
from headrace.storage.compaction.request import CleanedGroup
from headrace.storage.segment import SUFFIXES, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
_REPLACED: Final = (".log", ".index", ".timeindex", ".txnindex")
"""Files that a cleaned segment replaces or deletes; the snapshot of producers at its start stays valid."""


def swap_in(directory: Path, group: CleanedGroup) -> None:
    """Replace segments by a cleaned one, durably."""
    deque(swap_steps(directory, group), maxlen=0)


def recover_swaps(directory: Path) -> None:
    """Complete committed swaps after a crash, and delete the files of others."""
    deque(recovery_steps(directory), maxlen=0)


def swap_steps(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Swap, and yield after each change of the folder, so that a test can crash anywhere."""
    for suffix in group.suffixes:
        name = segment_name(group.base_offset, suffix)
        (directory / (name + CLEANED)).rename(directory / (name + SWAP))
        yield f"{name} renamed"
    yield from _commit(directory, group)
    yield from _apply(directory, group)


def recovery_steps(directory: Path) -> Iterator[str]:
    """Recover, and yield after each change of the folder."""
    for plan in sorted(directory.glob(f"*{SWAP}")):
        if plan.stem.isdigit():
            fields = json.loads(plan.read_bytes())
            group = CleanedGroup(replaces=tuple(fields["replaces"]), suffixes=tuple(fields["suffixes"]))
            yield from _apply(directory, group)
    for pattern in (f"*{CLEANED}", f"*{SWAP}"):
        for path in sorted(directory.glob(pattern)):
            path.unlink()
            yield f"{path.name} deleted"


def _commit(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Write the plan; its rename commits the swap."""
    plan = _plan_path(directory, group)
    draft = plan.with_name(plan.name + CLEANED)
    with draft.open("wb") as file:
        file.write(json.dumps(asdict(group)).encode())
        file.flush()
        os.fsync(file.fileno())
    yield "plan written"
    sync_directory(directory)
    draft.rename(plan)
    sync_directory(directory)
    yield "plan committed"


def _apply(directory: Path, group: CleanedGroup) -> Iterator[str]:
    for base_offset in group.replaces[1:]:
        for suffix in SUFFIXES:
            (directory / segment_name(base_offset, suffix)).unlink(missing_ok=True)
            yield f"{segment_name(base_offset, suffix)} deleted"
    for suffix in _REPLACED:
        path = directory / segment_name(group.base_offset, suffix)
        incoming = path.with_name(path.name + SWAP)
        if suffix not in group.suffixes:
            path.unlink(missing_ok=True)
        elif incoming.exists():
            incoming.replace(path)
        yield f"{path.name} replaced"
    sync_directory(directory)
    _plan_path(directory, group).unlink(missing_ok=True)
    yield "plan deleted"


def _plan_path(directory: Path, group: CleanedGroup) -> Path:
    return directory / segment_name(group.base_offset, SWAP)
