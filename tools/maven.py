"""Jars that a comparison needs, fetched by Maven once and kept from one run to the next.

They are kept in `$HEADRACE_CACHE` or `~/.cache/headrace`, a folder for each set of jars.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
DEPENDENCY = (
    "    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
    "<version>{version}</version>{exclusions}</dependency>"
)
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class JarsUnavailable(Exception):
    """Jars could not be fetched; the message says why and what to do."""


class Artifact(NamedTuple):
    """A jar by Maven's coordinates; one that is fetched `alone` brings nothing that it depends on."""

    group: str
    name: str
    version: str
    alone: bool = False

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.version}.jar"


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder that keeps what was fetched from one run to the next."""
    return Path(environment.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")


def fetch(name: str, artifacts: Sequence[Artifact], cache: Path | None = None) -> Path:
    """The folder `name` of the cache with these jars in it, fetched by Maven when it is not there yet.

    It appears whole or not at all: Maven fills a folder beside it, which is then renamed.
    """
    target = (cache or cache_folder()) / name
    if target.is_dir():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailable(
            f"Fetching {name} needs the program 'mvn', which is not on PATH: "
            f"install Maven (Debian: apt install maven)."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"Fetching {name} by Maven into {target}\n")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as folder:
        jars = Path(folder, "jars")
        _run_maven(maven, name, artifacts, jars)
        appear(jars, target)
    return target


def appear(made: Path, target: Path) -> None:
    """Rename a complete folder; if another process was first, its folder is used."""
    try:
        made.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _run_maven(maven: str, name: str, artifacts: Sequence[Artifact], jars: Path) -> None:
    project = jars.parent / "pom.xml"
    dependencies = "\n".join(
        DEPENDENCY.format(
            group=one.group, name=one.name, version=one.version, exclusions=ALONE if one.alone else ""
        )
        for one in artifacts
    )
    project.write_text(PROJECT.format(name=name, dependencies=dependencies))
    command = [maven, "-B", "-q", "-f", str(project), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    absent = [one.file for one in artifacts if not (jars / one.file).is_file()]
    if done.returncode or absent:
        raise JarsUnavailable(
            f"Maven could not fetch {name} (exit {done.returncode}; missing: {', '.join(absent) or 'none'}): "
            f"look at its answer below, and at the repository in ~/.m2/settings.xml.\n"
            f"{done.stdout}{done.stderr}"
        )
