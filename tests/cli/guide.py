"""A page of the documentation as a session at a terminal: its commands, and what it says they print."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.terminal import DEADLINE_S

BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = "$ "
ANYTHING = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of a page, and the output that the page shows under it."""

    command: str
    expected: str


def steps(page: Path) -> Iterator[Step]:
    """The commands of all `console` blocks of a page, in their order."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(rf"^{re.escape(PROMPT)}", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            yield Step(command=command, expected=expected)


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what the page shows; `...` stands for anything."""
    pattern = ".*?".join(re.escape(piece) for piece in expected.strip().split(ANYTHING))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def run_command(command: str, *, bootstrap: str, folder: Path) -> str:
    """What a command of a page prints, errors included."""
    environment = {
        **os.environ,
        "HEADRACE_BROKER": bootstrap,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    result = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return result.stdout
