"""The log act of the demo, and what the demo's pipeline is as a file."""

import subprocess
import sys

from headrace.demo.worker import PIPELINE
from tests.docs.pages import ROOT, blocks

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


def test_what_the_page_about_the_demo_quotes_is_in_the_pipeline() -> None:
    lines = set(PIPELINE.read_text().splitlines())
    page = list(blocks(ROOT / "docs/demo.md"))
    quoted = [block.text for block in page if block.language == "text" and "app." in block.text]
    assert len(quoted) >= 2
    for line in "\n".join(quoted).splitlines():
        assert line in lines
