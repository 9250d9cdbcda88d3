"""`python -m bench.broker`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench.broker.measures.ceiling import measure_ceiling
from bench.broker.measures.latency import measure_latency
from bench.broker.measures.memory import measure_memory
from bench.broker.measures.requests import measure_requests
from bench.broker.measures.startup import measure_startup
from bench.broker.measures.throughput import measure_throughput
from bench.broker.plan import FULL, QUICK, Plan
from bench.broker.report import print_report, write_report
from bench.broker.stage import ClientFailed, Stage, set_up
from bench.broker.systems import SYSTEMS, System
from bench.broker.systems.system import Flush
from bench.broker.warm_up import warm_up
from bench.choices import names_of
from bench.machine import machine_facts
from bench.processes import ServerFailed
from bench.readings import Readings
from bench.tables import make_progress, warn_when_busy
from tools.apache_kafka import ApacheKafkaUnavailable

# In the order in which they run: each stage starts its systems once, after `startup`.
MEASURES: dict[Flush, dict[str, Callable[[Stage], None]]] = {
    Flush.OS: {
        "throughput": measure_throughput,
        "ceiling": measure_ceiling,
        "requests": measure_requests,
        "latency": measure_latency,
        "memory": measure_memory,
    },
    Flush.TLS: {"throughput": measure_throughput},
    Flush.ALWAYS: {
        "throughput": measure_throughput,
        "requests": measure_requests,
        "latency": measure_latency,
    },
}
NAMES = ("startup", *MEASURES[Flush.OS])
RESULTS = Path("bench/results/broker.json")


def main() -> None:
    """Run the selected benchmarks."""
    options = _parse(sys.argv[1:])
    plan = QUICK if options.quick else FULL
    systems = [SYSTEMS[name] for name in options.systems]
    machine, readings = machine_facts(), Readings()
    progress = make_progress()
    warn_when_busy(progress, machine)
    failure = None
    try:
        _measure(systems, set(options.only), plan, readings, progress)
    except (ServerFailed, ClientFailed, ApacheKafkaUnavailable) as failed:
        failure = f"The run ended early, and the tables show what was measured before that: {failed}"
    print_report(readings, systems)
    target = options.json or (None if options.quick or failure else RESULTS)
    if target:
        write_report(target, machine, readings, systems, plan)
    sys.exit(failure)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), help="of " + ",".join(SYSTEMS)
    )
    parser.add_argument("--only", type=names_of(NAMES), default=list(NAMES), help="of " + ",".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


def _measure(
    systems: Sequence[System], only: set[str], plan: Plan, readings: Readings, progress: Console
) -> None:
    for flush, measures in MEASURES.items():
        chosen = [measure for name, measure in measures.items() if name in only]
        starts = flush is Flush.OS and "startup" in only
        if not chosen and not starts:
            continue
        rounds = plan if flush is Flush.OS else plan.shortened()
        staged = [system for system in systems if flush is not Flush.TLS or system.speaks_kafka]
        with set_up(staged, flush, plan=rounds, readings=readings, progress=progress) as stage:
            if starts:
                measure_startup(stage)
            if chosen:
                _run(stage, chosen)


def _run(stage: Stage, measures: Sequence[Callable[[Stage], None]]) -> None:
    for entry in stage.entries:
        entry.node.start()
    warm_up(stage)
    for measure in measures:
        measure(stage)


if __name__ == "__main__":
    main()
