"""The first steps of a new user, literally: install the wheel, make a project, and do what its README shows.

Every command is read from the text of the README, and has a minute to print the lines shown below it; more
where other programs keep the machine busy.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, blocks, commands

pytestmark = [pytest.mark.demo, pytest.mark.timeout(1200)]

STEP_S = 60.0
INSTALL_S = 600.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a shell in which a new virtual environment with the built wheel is active."""
    folder = tmp_path_factory.mktemp("installed")
    pip_wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    call([sys.executable, *pip_wheel, str(folder), str(ROOT)])
    call([sys.executable, "-m", "venv", str(folder / "venv")])
    python = str(folder / "venv/bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    call([*pip, "--require-hashes", "-r", str(ROOT / "requirements.lock")])
    (wheel,) = folder.glob("headrace-*.whl")
    call([*pip, "--no-deps", str(wheel)])
    return shell_environment(folder / "venv")


def call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def shell_environment(venv: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "PYTHON", "PYSPARK_", "PYTEST_"))
    }
    path = f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": path, "VIRTUAL_ENV": str(venv), "PYTHONUNBUFFERED": "1"}


class Screen:
    """A command in a terminal of its own, and what it has printed."""

    def __init__(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip())

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None and not self._reader.is_alive()

    def await_lines(self, expected: str) -> None:
        """Return when the lines of the README have been printed, or, where it shows none, at the end."""
        patterns = [pattern_of(line) for line in expected.splitlines() if line.strip(" .")]
        started = time.monotonic()
        while self._missing(patterns) or not (patterns or self.has_ended):
            is_over = self.has_ended or time.monotonic() > started + patience_s()
            if is_over and (missing := self._missing(patterns)):
                shown = "\n".join(self.lines[-40:])
                pytest.fail(f"$ {self._command}\n{missing[0].pattern} is missing in:\n{shown}")
            time.sleep(0.05)

    def _missing(self, patterns: list[re.Pattern[str]]) -> list[re.Pattern[str]]:
        return [pattern for pattern in patterns if not any(map(pattern.search, self.lines))]

    def close(self) -> None:
        """Press Ctrl-C, and wait for the end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(STEP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()


def patience_s() -> float:
    """A minute, for each program that wants a core."""
    return STEP_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def pattern_of(line: str) -> re.Pattern[str]:
    """The pattern of a line of the README; `...` stands for anything, and blanks for any number of them."""
    parts = [re.escape(part) for part in re.split(r"\.\.\.|\s+", line)]
    return re.compile(r".*?".join(parts))


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in reversed(opened):
        screen.close()


def steps(readme: Path) -> list[Command]:
    return [command for block in blocks(readme) for command in commands(block)]


def test_the_readme_of_a_new_project_shows_what_a_new_user_sees(
    environment: dict[str, str], tmp_path: Path, screens: list[Screen]
) -> None:
    init = subprocess.run(
        ["headrace", "init", "shop"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cd shop && headrace run pipeline.py" in init.stdout
    project = tmp_path / "shop"
    found = steps(project / "README.md")
    assert found[0].text == "headrace run pipeline.py"
    for step in found:
        screen = Screen(step.text, project, environment)
        screens.append(screen)
        screen.await_lines(step.expected)
        if step is found[0]:  # another broker on this machine may have the usual port
            address = re.search(r"up on (\S+?);", "\n".join(screen.lines))
            assert address is not None
            environment = environment | {"HEADRACE_BROKER": address[1]}
