"""`python -m bench.spark`: measure, print tables with ratios, and write the results as JSON."""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.brokers import BROKERS, broker_version, started_broker
from bench.choices import names_of
from bench.machine import machine_facts
from bench.readings import Readings
from bench.spark.measures.latency import measure_latency
from bench.spark.measures.reading import measure_reading
from bench.spark.measures.startup import measure_startup
from bench.spark.measures.writing import measure_writing
from bench.spark.plan import FULL, QUICK, Plan
from bench.spark.report import print_report, write_report
from bench.spark.spark_program import ProgramFailed, SparkProgram
from bench.spark.stage import Stage
from bench.spark.systems import SYSTEMS, System
from bench.tables import make_progress, warn_when_busy
from tools.apache_kafka import ApacheKafkaUnavailable
from tools.spark_connector import SparkConnectorUnavailable

MEASURES: dict[str, Callable[[Stage], None]] = {
    "reading": measure_reading,
    "writing": measure_writing,
    "latency": measure_latency,
}
NAMES = ("startup", *MEASURES)
RESULTS = Path("bench/results/spark.json")


def main() -> None:
    """Run the selected benchmarks."""
    options = _parse(sys.argv[1:])
    plan = QUICK if options.quick else FULL
    machine, readings = machine_facts(), Readings()
    progress = make_progress()
    warn_when_busy(progress, machine)
    failure, systems = None, []
    try:
        systems = [SYSTEMS[name]() for name in options.systems]
        _measure(systems, options, plan, readings, progress)
    except (ProgramFailed, ApacheKafkaUnavailable, SparkConnectorUnavailable) as failed:
        failure = f"The run ended early, and the tables show what was measured before that: {failed}"
    print_report(readings, systems)
    target = options.json or (None if options.quick or failure else RESULTS)
    if target:
        broker = broker_version(options.broker)
        write_report(target, machine, readings, systems=systems, broker=broker, plan=plan)
    sys.exit(failure)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument(
        "--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), help="of " + ",".join(SYSTEMS)
    )
    parser.add_argument("--only", type=names_of(NAMES), default=list(NAMES), help="of " + ",".join(NAMES))
    parser.add_argument("--broker", choices=BROKERS, default="headrace", help="what holds the topics")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that Spark may use")
    parser.add_argument("--quick", action="store_true", help="small topics: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


def _measure(
    systems: Sequence[System], options: argparse.Namespace, plan: Plan, readings: Readings, progress: Console
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        bootstrap = stack.enter_context(started_broker(options.broker, folder))
        stage = Stage(
            bootstrap=bootstrap,
            plan=plan,
            cores=options.cores,
            programs=[],
            readings=readings,
            progress=progress,
        )
        # Cold starts first, while no other program holds memory.
        if "startup" in options.only:
            measure_startup(stage, systems)
        chosen = [measure for name, measure in MEASURES.items() if name in options.only]
        if chosen:
            _run(stage, systems, chosen, stack)


def _run(
    stage: Stage, systems: Sequence[System], measures: Sequence[Callable[[Stage], None]], stack: ExitStack
) -> None:
    programs = [stack.enter_context(SparkProgram(system, stage.cores)) for system in systems]
    for measure in measures:
        measure(replace(stage, programs=programs))


if __name__ == "__main__":
    main()
