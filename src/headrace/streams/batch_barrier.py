"""Stops a job between two batches, for as long as a backup needs.

The job's process holds a shared lock while a batch runs. A backup takes the same lock exclusively. It takes
a second one first, which every batch passes before it begins: so a backup waits for one batch at most. The
locks are those of the operating system, and end with the process that holds them.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY: Final = "batch-entry.lock"
BATCH: Final = "batch.lock"
RETRY_SECONDS: Final = 0.01


class BatchTakesTooLong(HeadraceError):
    """A batch did not end in time."""


class BatchBarrier:
    """The barrier of the job whose folder on this machine is `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def batch(self) -> Iterator[None]:
        """A block in which a batch runs; waits while the job is paused."""
        entry = self._take(ENTRY, fcntl.LOCK_SH)
        try:
            held = self._take(BATCH, fcntl.LOCK_SH)
        finally:
            os.close(entry)
        try:
            yield
        finally:
            os.close(held)

    @contextmanager
    def paused(self, timeout_s: float) -> Iterator[None]:
        """A block in which no batch runs; raises `BatchTakesTooLong` if the current one does not end."""
        entry = self._take(ENTRY, fcntl.LOCK_EX, timeout_s)
        try:
            held = self._take(BATCH, fcntl.LOCK_EX, timeout_s)
            try:
                yield
            finally:
                os.close(held)
        finally:
            os.close(entry)

    def _take(self, name: str, kind: int, timeout_s: float | None = None) -> int:
        """The descriptor of a locked file, which ends the lock when it is closed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if timeout_s is None:
                fcntl.flock(descriptor, kind)
            else:
                self._poll(descriptor, kind, timeout_s)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _poll(self, descriptor: int, kind: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    job = f"{self._folder.parent.name}.{self._folder.name}"
                    raise BatchTakesTooLong(
                        f"a batch of job {job} did not end within {timeout_s:g} s: wait longer (--wait), or "
                        "stop the job first."
                    ) from None
                time.sleep(RETRY_SECONDS)
            else:
                return
