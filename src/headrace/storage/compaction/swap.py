"""Cleaned segments take the place of the old ones; a crash at any moment leaves one or the other whole.

    <base>.log.cleaned …    written and synced by the compactor; means nothing yet
    <base>.log.swap …       renamed, one by one; still means nothing
    <base>.swap             the plan: which segments go, which files come. From here on the swap is decided

What follows the plan can be done again from any point: delete the other old segments, rename the `.swap`
files to their own names, delete the plan. Opening a partition finishes what has a plan and deletes what has
none.
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
"""Files that a cleaned segment brings or takes away; the producers' snapshot at its beginning stays true."""


def swap_in(directory: Path, group: CleanedGroup) -> None:
    """Put a cleaned segment in the place of those that it replaces, to survive power loss from then on."""
    deque(swap_steps(directory, group), maxlen=0)


def recover_swaps(directory: Path) -> None:
    """Finish the swaps that a crash cut short after they were decided, and delete what was left of others."""
    deque(recovery_steps(directory), maxlen=0)


def swap_steps(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Do the swap and yield after each change of the folder, so that a test can stop anywhere."""
    for suffix in group.suffixes:
        name = segment_name(group.base_offset, suffix)
        (directory / (name + CLEANED)).rename(directory / (name + SWAP))
        yield f"{name} set aside"
    yield from _decide(directory, group)
    yield from _carry_through(directory, group)


def recovery_steps(directory: Path) -> Iterator[str]:
    """Do the recovery and yield after each change of the folder, for it may be cut short as well."""
    for plan in sorted(directory.glob(f"*{SWAP}")):
        if plan.stem.isdigit():
            fields = json.loads(plan.read_bytes())
            group = CleanedGroup(replaces=tuple(fields["replaces"]), suffixes=tuple(fields["suffixes"]))
            yield from _carry_through(directory, group)
    for pattern in (f"*{CLEANED}", f"*{SWAP}"):
        for path in sorted(directory.glob(pattern)):
            path.unlink()
            yield f"{path.name} deleted"


def _decide(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Write the plan; its renaming is the moment from which the swap will happen."""
    plan = _plan_path(directory, group)
    draft = plan.with_name(plan.name + CLEANED)
    with draft.open("wb") as file:
        file.write(json.dumps(asdict(group)).encode())
        file.flush()
        os.fsync(file.fileno())
    yield "plan drafted"
    sync_directory(directory)
    draft.rename(plan)
    sync_directory(directory)
    yield "plan decided"


def _carry_through(directory: Path, group: CleanedGroup) -> Iterator[str]:
    for base_offset in group.replaces[1:]:
        for suffix in SUFFIXES:
            (directory / segment_name(base_offset, suffix)).unlink(missing_ok=True)
            yield f"{segment_name(base_offset, suffix)} gone"
    for suffix in _REPLACED:
        path = directory / segment_name(group.base_offset, suffix)
        incoming = path.with_name(path.name + SWAP)
        if suffix not in group.suffixes:
            path.unlink(missing_ok=True)
        elif incoming.exists():
            incoming.replace(path)
        yield f"{path.name} in place"
    sync_directory(directory)
    _plan_path(directory, group).unlink(missing_ok=True)
    yield "plan deleted"


def _plan_path(directory: Path, group: CleanedGroup) -> Path:
    return directory / segment_name(group.base_offset, SWAP)
