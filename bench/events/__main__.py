"""`python -m bench.events`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.aims import Aim, judge
from bench.choices import names_of
from bench.events.systems import TITLES, System, started
from bench.machine import Facts, machine_facts
from bench.readings import Readings
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy

RESULTS = Path("bench/results/events.json")
COMMANDS, REBUILD = "commands", "rebuild of a projection"
RATE = "commands/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A number of callers on a number of aggregates."""

    name: str
    cell: str
    aggregates: int
    callers: int
    commands: int


ROWS = (
    Row(name="one", cell="1 aggregate, 1 caller", aggregates=1, callers=1, commands=1_000),
    Row(name="many", cell="1,000 aggregates, 1 caller", aggregates=1_000, callers=1, commands=1_000),
    Row(name="contended", cell="1 aggregate, 16 callers", aggregates=1, callers=16, commands=3_200),
    Row(name="parallel", cell="1,000 aggregates, 16 callers", aggregates=1_000, callers=16, commands=3_200),
)
NAMES = (*(row.name for row in ROWS), "rebuild")
AIMS = (
    *(Aim(measure=COMMANDS, cell=row.cell, unit=RATE, against="postgres", at_least=3) for row in ROWS),
    Aim(measure=REBUILD, cell="1 M events, Spark", unit="events/s", at_least=500_000),
)


def main() -> None:
    """Run the selected benchmarks."""
    options = _parse(sys.argv[1:])
    machine, progress, readings = machine_facts(), make_progress(), Readings()
    warn_when_busy(progress, machine)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        systems = [stack.enter_context(started(name, folder)) for name in options.systems]
        for number in range(1 if options.quick else options.rounds):
            for system in systems:
                for task, add in _tasks(system, options, number, readings):
                    progress.log(f"round {number + 1}: {TITLES[system.name]}, {task['run']}")
                    add(_run(system, task))
            _write(options, machine, readings)  # a run that is cut short has its whole rounds
    console = make_console()
    print_readings(console, readings, {name: TITLES[name] for name in options.systems}, "postgres")
    print_verdicts(console, (judge(aim, readings) for aim in AIMS))


def _write(options: argparse.Namespace, machine: Facts, readings: Readings) -> None:
    """Write facts, readings and verdicts as JSON; results that were not measured again are kept."""
    target = options.json or (None if options.quick else RESULTS)
    if target is None:
        return
    before = json.loads(target.read_text())["readings"] if target.is_file() else ()
    both = readings.with_others(before)
    aims = [judge(aim, both).as_json() for aim in AIMS]
    report = {"machine": machine, "systems": TITLES, "readings": both.as_json(), "aims": aims}
    target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.events", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(TITLES), default=list(TITLES), help="of " + ",".join(TITLES)
    )
    parser.add_argument("--only", type=names_of(NAMES), default=list(NAMES), help="of " + ",".join(NAMES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4, help="of Headrace's aggregates")
    parser.add_argument("--quick", action="store_true", help="small loads: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


def _tasks(
    system: System, options: argparse.Namespace, number: int, readings: Readings
) -> Iterator[tuple[dict[str, Any], Any]]:
    for row in ROWS:
        if row.name in options.only:
            task = {
                "work": "commands",
                "run": f"{row.name}{number}",
                "aggregates": row.aggregates,
                "callers": row.callers,
                "commands": row.commands // 10 if options.quick else row.commands,
                "partitions": options.partitions,
            }
            yield task, _adder(readings, system.name, COMMANDS, row.cell)
    if "rebuild" in options.only and number == 0 and system.name != "flushed":
        yield _rebuild(system, options), _rebuild_adder(readings, system.name)


def _rebuild(system: System, options: argparse.Namespace) -> dict[str, Any]:
    # The peer reads event by event in Python: its rate does not change with more of them.
    events = 1_000_000 if system.name == "headrace" else 50_000
    return {
        "work": "rebuild",
        "run": "rebuild",
        "events": events // (20 if options.quick else 1),
        "rounds": 3,
    }


def _adder(readings: Readings, system: str, measure: str, cell: str) -> Any:
    def add(reading: dict[str, float]) -> None:
        for unit, name in ((RATE, "rate"), ("p50 ms", "p50_ms"), ("p99 ms", "p99_ms")):
            readings.add(measure=measure, cell=cell, unit=unit, system=system, value=reading[name])

    return add


def _rebuild_adder(readings: Readings, system: str) -> Any:
    cells = {"rate": "1 M events, Spark", "chosen": "1 M events, Spark, the two columns that it needs"}
    if system != "headrace":
        cells = {"rate": "50,000 events, Python"}

    def add(reading: dict[str, float]) -> None:
        for name, cell in cells.items():
            readings.add(measure=REBUILD, cell=cell, unit="events/s", system=system, value=reading[name])

    return add


def _run(system: System, task: dict[str, Any]) -> dict[str, float]:
    done = subprocess.run(
        [*system.command, json.dumps({**system.task, **task})], stdout=subprocess.PIPE, text=True, check=True
    )
    reading: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return reading


if __name__ == "__main__":
    main()
