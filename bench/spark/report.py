"""The report of a run: tables on the terminal, and a JSON file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.aims import judge
from bench.machine import Facts
from bench.readings import Readings
from bench.spark.aims import AIMS
from bench.spark.plan import Plan
from bench.spark.systems import System
from bench.tables import make_console, print_readings, print_verdicts

BASE = "connector"


def print_report(readings: Readings, systems: Sequence[System]) -> None:
    """Print the tables; ratios are against Spark's connector."""
    console = make_console()
    print_readings(console, readings, {system.name: system.title for system in systems}, BASE)
    print_verdicts(console, (judge(aim, readings) for aim in AIMS))


def write_report(
    file: Path,
    machine: Facts,
    readings: Readings,
    *,
    systems: Sequence[System],
    broker: Mapping[str, str],
    plan: Plan,
) -> None:
    """Write the machine's facts, the readings and the verdicts as JSON."""
    report = {
        "plan": plan.name,
        "machine": machine,
        "broker": dict(broker),
        "systems": {system.name: dict(system.versions) for system in systems},
        "readings": readings.as_json(),
        "aims": [judge(aim, readings).as_json() for aim in AIMS],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
