"""The report of a run: tables on the terminal, and a JSON file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.aims import judge
from bench.machine import Facts
from bench.streams.aims import aims
from bench.streams.stage import Stage
from bench.streams.systems import System
from bench.tables import make_console, print_readings, print_verdicts

BASE = "headrace"


def print_report(stage: Stage, systems: Sequence[System]) -> None:
    """Print the tables, with ratios to Headrace, and the notes on rows."""
    console = make_console()
    print_readings(console, stage.readings, {system.name: system.title for system in systems}, BASE)
    for note in stage.notes:
        console.print(f"{note.system}, {note.cell}: {note.text}", markup=False)
    cells = {cell for _, cell in stage.tried}
    print_verdicts(console, (judge(aim, stage.readings) for aim in aims() if aim.cell in cells))


def write_report(file: Path, machine: Facts, stage: Stage, systems: Sequence[System]) -> None:
    """Write facts, readings, notes and verdicts as JSON; results that were not measured again are kept."""
    before: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    readings = stage.readings.with_others(before.get("readings", ()))
    versions = {system.name: dict(system.versions) for system in systems}
    report = {
        "plan": stage.plan.name,
        "machine": machine,
        "systems": {**before.get("systems", {}), **versions},
        "readings": readings.as_json(),
        "notes": [*_still_true(before.get("notes", ()), stage), *(note._asdict() for note in stage.notes)],
        "aims": [judge(aim, readings).as_json() for aim in aims()],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def _still_true(notes: Sequence[dict[str, str]], stage: Stage) -> list[dict[str, str]]:
    """The notes of rows that were not measured again."""
    return [note for note in notes if (note["system"], note["cell"]) not in stage.tried]
