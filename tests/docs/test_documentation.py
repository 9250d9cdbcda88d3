"""Every code block in the documentation does what its page says."""

import re
import runpy
import subprocess
import sys
import tomllib
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.demo.observability_demo import PIPELINE as OBSERVABILITY
from headrace.demo.workers import PIPELINE
from tests.docs.pages import PAGES, ROOT, USES_SESSION, Block, Terminal, blocks, commands, matches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCKS = [block for page in PAGES for block in blocks(page)]
CONSOLE_PAGES = sorted({block.page for block in BLOCKS if block.language == "console"})
SESSION_PAGES = [
    page
    for page in CONSOLE_PAGES
    if re.search(rf"^\$ {USES_SESSION.pattern}", page.read_text(), re.MULTILINE)
]
"""Pages whose commands run jobs or queries on this machine."""
OBSERVABILITY_PAGE = ROOT / "docs/observability.md"
INSTALLATION = ROOT / "docs/installation.md"
MARKS = {
    ROOT / "docs/cluster.md": [pytest.mark.cluster],  # its commands start Apache Kafka and a Spark cluster
    ROOT / "docs/secured-clusters.md": [pytest.mark.cluster],  # its commands start a secured Apache Kafka
    INSTALLATION: [
        pytest.mark.demo,
        pytest.mark.timeout(1200),
    ],  # they install the wheel
}
PYTHON = [block for block in BLOCKS if block.language == "python" and not block.file_name]
SAVED = [
    block for block in BLOCKS if block.language == "python" and block.file_name
]  # run by the commands of their pages
ON_SPARK = re.compile(r"headrace\.testing import .*\brun\b|\blocal_session\(|\bapp\.run\(")
JOBS = [block for block in PYTHON if ON_SPARK.search(block.text)]
PROGRAMS = [block for block in PYTHON if block not in JOBS]
OTHER = [block for block in BLOCKS if block.language not in ("console", "python")]

MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def of_pages(pages: list[Path]) -> pytest.MarkDecorator:
    """Run a test for each page."""
    cases = [pytest.param(page, id=str(page.relative_to(ROOT)), marks=MARKS.get(page, ())) for page in pages]
    return pytest.mark.parametrize("page", cases)


@pytest.mark.timeout(420)
@of_pages([page for page in CONSOLE_PAGES if page not in SESSION_PAGES])
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path)


@pytest.mark.timeout(420)
@of_pages(SESSION_PAGES)
def test_the_commands_of_a_page_that_run_jobs_print_what_it_shows(
    page: Path,
    spark: "SparkSession",  # found by the commands, which need not start one
    tmp_path: Path,
) -> None:
    follow(page, tmp_path)


def follow(page: Path, tmp_path: Path) -> None:
    """Save the files of a page and type its commands, in their order."""
    terminal = Terminal(tmp_path)
    if page == INSTALLATION:
        (tmp_path / "headrace").symlink_to(ROOT)
    try:
        for block in blocks(page):
            if block.language == "console":
                for command in commands(block):
                    terminal.run(command)
            elif block.file_name:
                terminal.save(block.file_name, block.text)
    finally:
        terminal.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_a_python_example_runs(block: Block, tmp_path: Path) -> None:
    example = block.write_into(tmp_path)
    is_test = "def test_" in block.text
    command = [sys.executable, "-m", "pytest", "-q"] if is_test else [sys.executable]
    done = subprocess.run(
        [*command, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", JOBS, ids=lambda block: block.name)
def test_an_example_of_a_job_runs(
    block: Block,
    spark: "SparkSession",  # found by the example, which need not start one
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # other tests use the session as well
    role = "example" if "def test_" in block.text else "__main__"
    names = runpy.run_path(str(block.write_into(tmp_path)), run_name=role)
    for test in [names[name] for name in names if name.startswith("test_")]:
        test(**{name: request.getfixturevalue(name) for name in signature(test).parameters})


@pytest.mark.parametrize("block", SAVED, ids=lambda block: block.name)
def test_a_file_that_a_page_shows_is_run_by_its_commands(block: Block) -> None:
    after = [other for other in blocks(block.page) if other.line > block.line and other.language == "console"]
    assert any(f" {block.file_name}" in command.text for other in after for command in commands(other))


@pytest.mark.parametrize("block", OTHER, ids=lambda block: block.name)
def test_other_blocks_are_of_a_kind_that_can_be_checked(block: Block) -> None:
    match block.language:
        case "sh":  # what this suite itself is started by: the targets must at least exist
            assert {line.split()[1] for line in block.text.splitlines()} <= MAKE_TARGETS
        case "toml":
            tomllib.loads(block.text)
        case "py":  # a piece of a pipeline of the demo, which is run as a whole
            pipeline = OBSERVABILITY if block.page == OBSERVABILITY_PAGE else PIPELINE
            assert block.text in pipeline.read_text()
        case "text":  # a picture in characters: nothing to run
            assert not block.text.startswith("$ ")
        case unknown:
            pytest.fail(f"no test runs blocks of language {unknown!r}")


def test_an_ellipsis_stands_for_anything_and_nothing_else_does() -> None:
    assert matches("a ... c\n", "a b\nb c")
    assert matches("...", "")
    assert not matches("a.c", "abc")
    assert not matches("a ...", "b a c")
