"""The documentation's code blocks, and a terminal that runs them."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.testing.postgres import free_port

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "bench/README.md",
]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\w+\.py|headrace\.toml)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file name in its first line, such as `# pipeline.py`."""
        match = _FILE_NAME.match(self.text)
        return match[1] if match and self.language in ("python", "toml") else None

    def write_into(self, folder: Path) -> Path:
        """The file that a reader would make of it."""
        file = folder / "test_example.py"
        file.write_text(self.text)
        return file


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page=page, line=line, language=match[1], text=match[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    text: str
    expected: str


def commands(block: Block) -> Iterator[Command]:
    """The commands of a console block, each with the lines that it must print."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        first, _, expected = part.partition("\n")
        yield Command(text=first, expected=expected)


USES_SESSION = re.compile(r"headrace (run|query) (?!.*--master)")
"""Commands that start Spark on this machine, or use a session of their process."""
RUNS_HERE = re.compile(
    rf"headrace (acl|consume|dead|group|job|queue|topic|user)[^|<>;&$]*$|{USES_SESSION.pattern}"
)
"""Commands that run in the process of the tests: most take less time than a process takes to start."""


class Terminal:
    """A folder of its own in which commands run one after the other, as a reader would type them.

    Ports 9092, 8080 and 8088 are replaced by free ones, so that servers on this machine are not disturbed. A
    command that ends in `&` goes on until the page is done; it has started when its first expected line is
    there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {"9092": str(free_port()), "8080": str(free_port()), "8088": str(free_port())}
        self._background: list[subprocess.Popen[str]] = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._of_reader = {
            "HEADRACE_BROKER": f"127.0.0.1:{self._ports['9092']}",
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        # A reader stands in the checkout.
        python_path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": python_path, **self._of_reader}

    def save(self, name: str, text: str) -> None:
        """Write a file that the page shows, for the commands after it."""
        (self._folder / name).write_text(text)

    def run(self, command: Command) -> None:
        text = command.text
        for shown, port in self._ports.items():
            text = text.replace(shown, port)
        if text.endswith("&"):
            self._run_in_background(text[:-1], command)
            return
        if RUNS_HERE.match(text):
            self._run_here(text, command)
            return
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        _compare(command, self._as_shown(done.stdout))

    def _run_here(self, text: str, command: Command) -> None:
        """Run a command of Headrace in this process, where it finds the Spark session of the tests."""
        with chdir(self._folder):
            done = CliRunner().invoke(app, shlex.split(text)[1:], env=self._of_reader)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        _compare(command, self._as_shown(done.output))

    def _run_in_background(self, text: str, command: Command) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._background.append(process)
        assert process.stdout is not None
        _compare(command, self._as_shown(process.stdout.readline()))

    def _as_shown(self, printed: str) -> str:
        for shown, port in self._ports.items():
            printed = printed.replace(port, shown)
        return printed

    def close(self) -> None:
        for process in self._background:
            process.send_signal(signal.SIGTERM)
            process.wait(100)
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _compare(command: Command, printed: str) -> None:
    assert matches(command.expected, printed), (
        f"$ {command.text}\nexpected:\n{command.expected}\ngot:\n{printed}"
    )


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what the page shows; `...` stands for anything."""
    pattern = ".*?".join(re.escape(piece) for piece in _stripped(expected).split("..."))
    return re.fullmatch(pattern, _stripped(printed), re.DOTALL) is not None


def _stripped(text: str) -> str:
    """The text without spaces at the ends of lines, which are invisible."""
    return "\n".join(line.rstrip() for line in text.strip().split("\n"))
