"""The machine that a benchmark ran on, as facts that may be published: no host name, no paths."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

Facts = dict[str, str | int | float]


def machine_facts() -> Facts:
    """Cores, memory, processor, kernel and Python of this machine, and how busy it is now."""
    return {
        "cores": os.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def package_versions(*names: str) -> dict[str, str]:
    """The installed version of each package; a package that is not there is left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    # platform.processor() is empty on most Linux systems.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
