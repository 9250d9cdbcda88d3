"""The classes that Spark loads at every start, kept by Java in the form in which it needs them.

Spark loads some fifteen thousand classes before its first row, and Java reads, parses and verifies each of
them. The first session of an environment writes them into an archive when it ends; later ones map that into
their memory, and start in three fifths of the time. Java itself sees to it that the archive fits: of another
version of Java or Spark it uses nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.spark.java import Java

FOLDER: Final = Path(__file__).parent / "__pycache__"
"""Where compiled Python and the compiled loops are: what a start leaves for the next one."""
QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java would warn of each class that cannot be archived, and of an archive that does not fit."""
MAGIC_BYTES: Final = 4
BASE_SECONDS: Final = 60


def archive_options(
    java: Java, jars: Path, folder: Path = FOLDER, *, settings: Path | None = None
) -> tuple[str, ...]:
    """The options by which `java` uses the archive for the classes in `jars`, or writes it at its end.

    None where it cannot be written, nor where there is something in `settings`, the folder that Spark puts
    before the jars: Java makes no archive where classes could come from a folder.
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
    """An archive of Java's own classes, to which others add, for a Java that came without one."""
    base = folder / f"java-{_fingerprint(java.executable)}.jsa"
    if not _is_whole(base):
        command = [str(java.executable), "-Xshare:dump", f"-XX:SharedArchiveFile={base}", *QUIET]
        try:
            subprocess.run(command, capture_output=True, timeout=BASE_SECONDS, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
    return base


def _fingerprint(*paths: Path) -> str:
    """Differs where an archive would be of no use."""
    parts = [(str(path.resolve()), path.stat().st_mtime_ns) for path in paths]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _is_whole(archive: Path) -> bool:
    """Whether Java wrote it to its end: its first bytes come last."""
    try:
        with archive.open("rb") as file:
            return any(file.read(MAGIC_BYTES))
    except OSError:
        return False
