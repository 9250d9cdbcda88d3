"""`headrace init` makes a project that runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.streams.pipeline import load_app


def init(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", "init", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_a_project_has_the_name_that_was_given(tmp_path: Path) -> None:
    done = init(tmp_path, "bakery")
    assert done.returncode == 0, done.stderr
    assert "cd bakery && headrace run pipeline.py" in done.stdout
    app = load_app(tmp_path / "bakery" / "pipeline.py")
    assert app.name == "bakery"
    assert [job.name for job in app.jobs] == ["order_status", "revenue", "alerts"]
    assert not any("NAME" in file.read_text() for file in (tmp_path / "bakery").glob("*.*"))


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("mine")
    done = init(tmp_path, "bakery", "--into", ".")
    assert done.returncode == 2
    assert "pipeline.py exists already" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["pipeline.py"]


@pytest.mark.demo
@pytest.mark.timeout(240)
def test_the_tests_of_a_new_project_pass(tmp_path: Path) -> None:
    init(tmp_path, "bakery")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"]
    done = subprocess.run(command, cwd=tmp_path / "bakery", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
