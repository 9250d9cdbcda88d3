"""The scenarios of the demo as commands, and what the demo's pipeline is as a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MOST_LINES = 150


def demo(*arguments: str, timeout_s: float) -> str:
    command = [sys.executable, "-m", "headrace.cli", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_log_survives_its_crash_and_nothing_is_missing() -> None:
    shown = demo("--scenario", "log", "--seconds", "4", timeout_s=100)
    assert "killed (kill -9), and is ready after" in shown
    assert shown.count("✓") == 5
    assert "✗" not in shown


@pytest.mark.demo
@pytest.mark.timeout(420)
def test_logs_and_metrics_of_an_sdk_become_rates_percentiles_and_alerts() -> None:
    shown = demo("--scenario", "observability", "--seconds", "10", timeout_s=400)
    assert shown.count("✓") == 7
    assert "✗" not in shown


def test_a_demo_that_is_stopped_early_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "demo"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "are up" in process.stdout.readline()
        assert any("postgres" in each for each in processes_of(tmp_path))
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
    assert process.returncode != 0
    assert processes_of(tmp_path) == []


def processes_of(folder: Path) -> list[str]:
    """The command lines that name a folder."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(file.read_text(errors="replace"))
        except OSError:  # it has ended meanwhile
            continue
    return [line for line in lines if str(folder) in line]


@pytest.mark.parametrize("scenario", ["shop", "observability"])
def test_a_pipeline_is_one_file_that_can_be_read_in_one_go(scenario: str) -> None:
    text = demo("--scenario", scenario, "--pipeline", timeout_s=60)
    compile(text, "pipeline.py", "exec")
    assert f'app = App("{scenario}")' in text
    assert len(text.splitlines()) <= MOST_LINES
