"""Prepares the page cache equally for every system before it writes.

A virtual machine may have to request each page that it has not used for some seconds from its host, which
made writes six times slower (0.6 GB/s instead of 4 GB/s). Without this, a system that writes to new memory
would seem slower than it is.
"""

import os
import tempfile
from pathlib import Path

CHUNK_BYTES = 1 << 20


def settle() -> None:
    """Write out dirty pages of earlier loads, so that they do not disturb the next one."""
    os.sync()


def prime(folder: Path, megabytes: int) -> None:
    """Make this much memory available to the kernel, by filling a file and deleting it."""
    chunk = bytes(CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as scratch:
        for _ in range(megabytes * 1_000_000 // CHUNK_BYTES):
            scratch.write(chunk)
