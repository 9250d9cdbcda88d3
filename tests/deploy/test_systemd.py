"""The systemd units: systemd accepts them, they are hardened, and their commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from headrace.broker.__main__ import _parser
from headrace.cli.app import app

UNITS = sorted((Path(__file__).parents[2] / "deploy/systemd").glob("*.service"))
PROGRAM = "/opt/headrace/bin/headrace"
MAX_EXPOSURE = 2.0
"""Of 10; a unit without hardening has 9.6."""


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as it is installed, with a program that exists on this machine."""
    source: Path = request.param
    target = tmp_path / source.name.replace("@.", "@shop.")
    target.write_text(source.read_text().replace(PROGRAM, sys.executable))
    return target


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False)


def test_there_is_a_unit_for_the_broker_for_jobs_and_for_captures() -> None:
    names = {path.name for path in UNITS}
    assert names == {"headrace-broker.service", "headrace-run@.service", "headrace-capture@.service"}


@pytest.mark.deploy
def test_systemd_accepts_a_unit_without_a_warning(unit: Path) -> None:
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.deploy
def test_a_unit_is_hardened(unit: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for .*?: ([\d.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) < MAX_EXPOSURE


def command_of(name: str) -> list[str]:
    (unit,) = (path for path in UNITS if path.name.startswith(name))
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    program, *arguments = line.split()
    assert program == PROGRAM
    return [argument for argument in arguments if not argument.startswith("$")]


def test_the_broker_takes_the_options_of_its_unit() -> None:
    command, *options = command_of("headrace-broker")
    assert command == "broker"
    assert _parser().parse_args(options).data == Path("/var/lib/headrace/data")


@pytest.mark.parametrize("name", ["headrace-run", "headrace-capture"])
def test_the_command_of_a_unit_exists_with_its_options(name: str) -> None:
    found = get_command(app)
    arguments = command_of(name)
    while hasattr(found, "commands"):
        found = found.commands[arguments.pop(0)]
    known = {option for parameter in found.params for option in parameter.opts}
    assert {argument for argument in arguments if argument.startswith("--")} <= known
