"""What this machine has to give: cores and memory, as far as a container lets us have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

GIB: Final = 1 << 30
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def usable_cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory_bytes() -> int:
    """How much memory this process may use: the machine's, or its container's where that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(memory, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return memory


def driver_memory_gib(memory_bytes: int) -> int:
    """The heap of a Spark that has this machine for itself, in GiB.

    A third of the memory: Python workers, Arrow buffers and the page cache of the log need the rest. A heap
    beyond 16 GiB makes pauses longer and streams no faster.

    >>> [driver_memory_gib(gib << 30) for gib in (2, 8, 24, 256)]
    [1, 2, 8, 16]
    """
    return max(1, min(16, memory_bytes // 3 // GIB))
