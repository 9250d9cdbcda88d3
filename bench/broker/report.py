"""The report of a run: tables on the terminal, and a JSON file."""

import json
from collections.abc import Sequence
from pathlib import Path

from bench.aims import judge
from bench.broker.aims import AIMS
from bench.broker.plan import Plan
from bench.broker.systems.system import System
from bench.machine import Facts, package_versions
from bench.readings import Readings
from bench.tables import make_console, print_readings, print_verdicts

BASE = "kafka"
CLIENTS = ("confluent-kafka", "nats-py", "redis", "uvloop")


def print_report(readings: Readings, systems: Sequence[System]) -> None:
    """Print the tables; ratios are against Apache Kafka."""
    console = make_console()
    print_readings(console, readings, {system.name: system.title for system in systems}, BASE)
    print_verdicts(console, (judge(aim, readings) for aim in AIMS))


def write_report(
    file: Path, machine: Facts, readings: Readings, systems: Sequence[System], plan: Plan
) -> None:
    """Write the machine's facts, the readings and the verdicts as JSON."""
    report = {
        "plan": plan.name,
        "machine": machine,
        "systems": {system.name: system.version() for system in systems},
        "clients": package_versions(*CLIENTS),
        "readings": readings.as_json(),
        "aims": [judge(aim, readings).as_json() for aim in AIMS],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
