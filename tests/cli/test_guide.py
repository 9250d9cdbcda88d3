"""The page about the command line shows what the commands really do."""

from pathlib import Path

import pytest

from tests.cli.guide import matches, run_command, steps

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"


@pytest.mark.timeout(300)
def test_every_command_of_the_page_prints_what_the_page_shows(bootstrap: str, tmp_path: Path) -> None:
    shown = list(steps(PAGE))
    assert len(shown) > 20
    for step in shown:
        printed = run_command(step.command, bootstrap=bootstrap, folder=tmp_path)
        assert matches(step.expected, printed), f"$ {step.command}\n{printed}"


def test_an_ellipsis_stands_for_anything_and_nothing_else_does() -> None:
    assert matches("a ... c\n", "a b\nb c")
    assert matches("...", "")
    assert not matches("a.c", "abc")
    assert not matches("a ...", "b a c")
