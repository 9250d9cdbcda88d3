"""The log act of the demo, and what the demo's pipeline is as a file."""

import subprocess
import sys

MOST_LINES = 150


def demo(*arguments: str, timeout_s: float) -> str:
    command = [sys.executable, "-m", "headrace.cli", "demo", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_log_survives_its_crash_and_nothing_is_missing() -> None:
    shown = demo("--act", "log", "--seconds", "4", timeout_s=100)
    assert "killed (kill -9) and is back" in shown
    assert shown.count("✓") == 5
    assert "✗" not in shown


def test_the_pipeline_is_one_file_that_can_be_read_in_one_go() -> None:
    text = demo("--pipeline", timeout_s=60)
    compile(text, "pipeline.py", "exec")
    assert 'app = App("shop")' in text
    assert len(text.splitlines()) <= MOST_LINES
