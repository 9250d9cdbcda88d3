"""The demo runs to its end, and its check holds."""

import subprocess
import sys


def test_the_demo_survives_its_crash_and_finds_nothing_missing() -> None:
    command = [sys.executable, "-m", "headrace.cli", "demo", "--seconds", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed (kill -9) and is back" in done.stdout
    assert done.stdout.count("✓") == 5
    assert "✗" not in done.stdout
