"""The demo runs to its end, and its checks hold."""

import subprocess
import sys

import pytest


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


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_both_acts_of_spark_survive_their_crashes_with_each_effect_once() -> None:
    shown = demo("--seconds", "8", timeout_s=380)
    assert "The first results are there" in shown
    assert "The broker was killed (kill -9) and is back" in shown
    assert "Redis was killed (kill -9)" in shown
    assert shown.count("✓") == 9


def test_the_pipeline_of_the_demo_is_a_file_to_begin_with() -> None:
    text = demo("--pipeline", timeout_s=60)
    compile(text, "pipeline.py", "exec")
    assert 'app = App("demo")' in text
