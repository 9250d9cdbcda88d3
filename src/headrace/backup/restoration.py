"""Restores a backup into new folders. Every chunk is checked before it is written.

A folder appears under its name when all of it is there: a restore that fails leaves `<name>.partial`.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.backup.store import BackupStore
from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.backup.store import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The folders to restore to. Those that are None are left out."""

    data: Path | None = None
    state: Path | None = None
    checkpoints: Path | None = None

    @property
    def by_name(self) -> Mapping[str, Path]:
        """The folders that are wanted, by their names in a backup."""
        folders = {"data": self.data, "state": self.state, "checkpoints": self.checkpoints}
        return {name: path for name, path in folders.items() if path is not None}


def restore_backup(source: Path, targets: Targets, backup: str | None = None) -> Manifest:
    """Restore a backup, the newest one if none is named; returns when it is on disk."""
    store = BackupStore.open(source)
    manifest = store.read(backup)
    wanted = {name: path for name, path in targets.by_name.items() if name in manifest.folders}
    missing = manifest.folders.keys() - wanted.keys()
    if missing:
        options = ", ".join(f"--{name} DIR" for name in sorted(missing))
        raise Misuse(f"backup {manifest.id} has files for more folders: name them ({options}).")
    for path in wanted.values():
        if path.exists() and any(path.iterdir()):
            raise Misuse(f"{path} has files already: restore into a folder that does not exist.")
    # The data come last: with a broker in the state folder they are in a folder of it.
    for name in sorted(wanted, reverse=True):
        _restore(store, manifest, name, wanted[name])
    os.sync()
    return manifest


def _restore(store: BackupStore, manifest: Manifest, name: str, target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True, mode=0o700)
    for file in manifest.folders[name]:
        store.write_file(file, partial)
    if target.exists():
        target.rmdir()
    partial.rename(target)
