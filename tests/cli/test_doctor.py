"""What the doctor finds, and what it advises."""

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import doctor
from headrace.cli.app import app
from headrace.cli.doctor import Severity, examine
from headrace.settings import Settings


def test_a_machine_that_can_run_this_suite_is_well(headrace_broker: object, tmp_path: Path) -> None:
    address = headrace_broker.bootstrap  # type: ignore[attr-defined]
    findings = examine(broker=address, state=str(tmp_path))
    assert {finding.what for finding in findings} >= {"Python", "Java", "pyspark", "memory", "disk", "broker"}
    assert not [finding for finding in findings if finding.severity is Severity.PROBLEM]
    assert findings[-1].found == f"{address} answers (from --broker)"


def test_a_broker_that_does_not_answer_is_a_problem(closed_port: int) -> None:
    outcome = CliRunner().invoke(app, ["doctor", "--broker", f"127.0.0.1:{closed_port}", "--json"])
    assert outcome.exit_code == 1
    (problem,) = [finding for finding in json.loads(outcome.stdout) if finding["severity"] == "problem"]
    assert problem["what"] == "broker"
    assert "headrace broker" in problem["advice"]


def test_every_problem_has_a_mark_and_an_advice(closed_port: int) -> None:
    outcome = CliRunner().invoke(app, ["doctor", "--broker", f"127.0.0.1:{closed_port}"])
    assert "✗ broker" in outcome.stdout
    assert "→ start it with `headrace broker`" in outcome.stdout


def test_without_a_broker_one_is_started_on_the_usual_port(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.read(environment={}, folder=tmp_path)
    monkeypatch.setattr(doctor, "USUAL_PORT", closed_port)
    assert doctor.reach_broker(settings, None).severity is Severity.GOOD
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        monkeypatch.setattr(doctor, "USUAL_PORT", stranger.getsockname()[1])
        assert doctor.reach_broker(settings, None).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("name", "bounds", "severity"),
    [
        ("pyspark", ((99,), None), Severity.PROBLEM),
        ("pyspark", ((1,), (2,)), Severity.PROBLEM),
        ("pyspark", ((1,), None), Severity.GOOD),
        ("no-such-package", ((1,), None), Severity.PROBLEM),
    ],
)
def test_versions_are_compared(
    name: str,
    bounds: tuple[tuple[int], tuple[int] | None],
    severity: Severity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(doctor.NEEDED, name, bounds)
    finding = doctor.package_version(name)
    assert finding.severity is severity
    assert bool(finding.advice) == (severity is Severity.PROBLEM)


def test_too_little_memory_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.spark.java.usable_memory_bytes", lambda: 1 << 30)
    assert doctor.memory().severity is Severity.WARNING


def test_a_security_profile_that_is_not_there_is_a_problem(headrace_broker: object, tmp_path: Path) -> None:
    address = headrace_broker.bootstrap  # type: ignore[attr-defined]
    settings = Settings.read(environment={"HEADRACE_SECURITY_PROFILE": "production"}, folder=tmp_path)
    finding = doctor.reach_broker(settings, address)
    assert finding.severity is Severity.PROBLEM
    assert "there is no security profile 'production'" in finding.advice
