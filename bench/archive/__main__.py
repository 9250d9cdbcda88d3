"""`python -m bench.archive`: read archived records, and produce with and without uploads; writes JSON.

Archives: a folder, and moto, a server with S3's protocol in Python, which is often the limit itself.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.aims import Aim, judge
from bench.archive.load import measure_produce, measure_read, prepare
from bench.choices import names_of
from bench.machine import machine_facts, package_versions
from bench.readings import Readings
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy
from headrace.client.cluster import Cluster
from headrace.testing import BrokerProcess
from tools.s3_server import PROGRAM, S3Server

RESULTS = Path("bench/results/archive.json")
ARCHIVES = {"folder": "a folder (file://)", "s3": "moto (s3://)"}
READ, PRODUCE = "read archived records", "produce, one request at a time"
AIMS = (
    Aim(measure=READ, cell="moto (s3://)", unit="MB/s", at_least=200),
    Aim(measure=READ, cell="a folder (file://)", unit="MB/s", at_least=200),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    name: str
    rounds: int
    megabytes: int
    """Archived records that are read."""
    requests: int
    """Produce requests whose latency is measured."""


FULL = Plan(name="full", rounds=3, megabytes=1024, requests=20_000)
QUICK = Plan(name="quick", rounds=1, megabytes=64, requests=1_000)


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _parse(sys.argv[1:])
    plan = QUICK if options.quick else FULL
    machine, readings = machine_facts(), Readings()
    progress = make_progress()
    warn_when_busy(progress, machine)
    for _ in range(plan.rounds):
        for kind in options.archives:
            with (
                tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
                _archive(kind, Path(name)) as url,
            ):
                _measure(readings, plan, Path(name), ARCHIVES[kind], url)
    console = make_console()
    print_readings(console, readings, {"headrace": "Headrace"}, "headrace")
    print_verdicts(console, (judge(aim, readings) for aim in AIMS))
    target = options.json or (None if options.quick else RESULTS)
    if target:
        report = {
            "plan": plan.name,
            "machine": machine,
            "versions": package_versions("headrace", "obstore"),
            "readings": readings.as_json(),
            "aims": [judge(aim, readings).as_json() for aim in AIMS],
        }
        target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def _measure(readings: Readings, plan: Plan, folder: Path, archive: str, url: str) -> None:
    arguments = ("--archive", url, "--archive-interval-ms", "100", "--maintenance-interval-ms", "200")
    with (
        BrokerProcess(folder / "data", *arguments) as process,
        Cluster.of(process.bootstrap) as cluster,
    ):
        prepare(cluster, plan.megabytes)
        speed = measure_read(cluster)
        readings.add(measure=READ, cell=archive, unit="MB/s", system="headrace", value=speed)
        for is_tiered in (False, True):
            p99 = measure_produce(cluster, plan.requests, is_tiered=is_tiered)
            cell = f"{'with' if is_tiered else 'without'} uploads, {archive}"
            readings.add(measure=PRODUCE, cell=cell, unit="ms p99", system="headrace", value=p99)


@contextmanager
def _archive(kind: str, folder: Path) -> Iterator[str]:
    if kind == "folder":
        yield (folder / "archive").as_uri()
        return
    with S3Server() as server:
        os.environ.update(server.environment)
        yield server.url


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    known = [name for name in ARCHIVES if name != "s3" or PROGRAM.exists()]
    parser.add_argument("--archives", type=names_of(ARCHIVES), default=known, help="of " + ",".join(ARCHIVES))
    parser.add_argument("--quick", action="store_true", help="few records: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
