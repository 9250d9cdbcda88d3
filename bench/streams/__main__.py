"""`python -m bench.streams`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.brokers import started_broker
from bench.choices import names_of
from bench.machine import machine_facts
from bench.readings import Readings
from bench.streams.plan import FULL, QUICK
from bench.streams.report import print_report, write_report
from bench.streams.stage import Stage
from bench.streams.systems import SYSTEMS, System
from bench.streams.trial import try_events
from bench.streams.view_trial import try_view
from bench.streams.works import NAMES, WORKS, Work
from bench.tables import make_progress, warn_when_busy
from headrace.client.cluster import Cluster
from tools.environments import EnvironmentUnavailable
from tools.maven import JarsUnavailable

RESULTS = Path("bench/results/streams.json")


def main() -> None:
    """Run the selected benchmarks."""
    options = _parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # and so are the programs
    machine, progress = machine_facts(), make_progress()
    warn_when_busy(progress, machine)
    try:
        systems = [SYSTEMS[name]() for name in options.systems]
    except (EnvironmentUnavailable, JarsUnavailable) as unavailable:
        sys.exit(f"{unavailable}\nTo go without, name the others: --systems headrace,…")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(started_broker("headrace", folder))
        stage = Stage(
            bootstrap=bootstrap,
            cluster=stack.enter_context(Cluster.of(bootstrap)),
            plan=QUICK if options.quick else FULL,
            cores=options.cores,
            readings=Readings(),
            progress=progress,
        )
        _measure(stage, systems, [work for work in WORKS if work.name in options.only])
    print_report(stage, systems)
    target = options.json or (None if options.quick else RESULTS)
    if target:
        write_report(target, machine, stage, systems)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), help="of " + ",".join(SYSTEMS)
    )
    parser.add_argument("--only", type=names_of(NAMES), default=list(NAMES), help="of " + ",".join(NAMES))
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that each may use")
    parser.add_argument("--quick", action="store_true", help="small topics: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


def _measure(stage: Stage, systems: Sequence[System], works: Sequence[Work]) -> None:
    for work in works:
        for system in systems:
            if work.kind not in system.kinds or (work.alone and system.name != "headrace"):
                continue
            stage.tried.add((system.name, work.cell))
            attempt = try_view if work.kind == "view" else try_events
            attempt(stage, system, work)


if __name__ == "__main__":
    main()
