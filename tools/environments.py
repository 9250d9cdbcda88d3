"""Virtual environments that a comparison needs, made once and kept from one run to the next.

They are kept beside the jars, in `$HEADRACE_CACHE` or `~/.cache/headrace`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tools.maven import appear, cache_folder


class EnvironmentUnavailable(Exception):
    """An environment could not be made; the message says why and what to do."""


def make_environment(name: str, requirements: str, cache: Path | None = None) -> Path:
    """The interpreter of an environment with exactly these requirements, each with its hash.

    It appears whole or not at all. The name holds the version: one that is there is not looked at again.
    """
    number = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache or cache_folder()
    target = folder / f"{name}-python-{number}"
    if not target.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        sys.stderr.write(f"Installing {name} into {target}\n")
        _make(name, requirements, target)
    return target / "bin" / "python"


def _make(name: str, requirements: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="fetching-") as folder:
        # An environment may be moved as long as only its interpreter is called, not the programs beside it.
        made, listed = Path(folder, "environment"), Path(folder, "requirements.txt")
        listed.write_text(requirements)
        _run(name, [sys.executable, "-m", "venv", str(made)])
        pip = [str(made / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        _run(name, [*pip, "--disable-pip-version-check", "--require-hashes", "-r", str(listed)])
        appear(made, target)


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentUnavailable(
            f"{name} could not be installed (exit {done.returncode} of {' '.join(command)}): "
            f"look at the answer below, and at the package index that pip uses.\n{done.stdout}{done.stderr}"
        )
