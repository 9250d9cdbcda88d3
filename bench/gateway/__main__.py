"""`python -m bench.gateway`: single-event POSTs per second, their CPU time, and the p99 at 1,000 a second."""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.aims import Aim, judge
from bench.choices import names_of
from bench.gateway.load import Load
from bench.machine import machine_facts, package_versions
from bench.processes import Server, cpu_seconds, free_port
from bench.readings import Readings, percentile, round_to
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy
from headrace.broker.process import BrokerProcess

RESULTS = Path("bench/results/gateway.json")
LOAD_SECONDS = 300
THROUGHPUT, LATENCY, CPU = "single-event POSTs", "POST at 1,000/s, p99", "POSTs per CPU second of the server"
TITLES = {"headrace": "Headrace gateway", "aiohttp": "aiohttp + confluent-kafka"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of the rounds."""

    name: str
    rounds: int
    requests: int
    paced_requests: int
    rate: int = 1_000
    connections: tuple[int, ...] = (16, 64, 256)


FULL = Plan(name="full", rounds=3, requests=100_000, paced_requests=20_000)
QUICK = Plan(name="quick", rounds=1, requests=2_000, paced_requests=1_000, connections=(64,))

AIMS = (
    Aim(measure=THROUGHPUT, cell="64 connections", unit="POSTs/s", at_least=20_000),
    Aim(measure=THROUGHPUT, cell="64 connections", unit="POSTs/s", against="aiohttp", at_least=1.0),
    Aim(measure=LATENCY, cell="64 connections", unit="ms", at_most=20),
)


def command_of(system: str, broker: str, port: int) -> list[str]:
    if system == "aiohttp":
        return [sys.executable, "-m", "bench.gateway.peer", broker, str(port)]
    return [sys.executable, "-m", "headrace.cli", "gateway", "--listen", str(port), "--broker", broker]


def post(load: Load) -> dict:
    """The result of one load."""
    command = [sys.executable, "-m", "bench.gateway.load", load.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    system: str, server: Server, port: int, plan: Plan, readings: Readings, progress: Console
) -> None:
    def note(name: str, cell: str, unit: str, value: float) -> None:
        readings.add(measure=name, cell=cell, unit=unit, system=system, value=value)
        progress.log(f"{name} · {cell} · {TITLES[system]}: {round_to(value):,g} {unit}")

    post(Load(port=port, topic="warm-up", requests=2_000))
    for connections in plan.connections:
        cell = f"{connections} connections"
        for _ in range(plan.rounds):
            before = cpu_seconds(server.pid)
            result = post(Load(port=port, topic="events", requests=plan.requests, connections=connections))
            requests = len(result["latencies_ms"])
            note(THROUGHPUT, cell, "POSTs/s", requests / result["seconds"])
            note(CPU, cell, "POSTs/CPU s", requests / (cpu_seconds(server.pid) - before))
    for _ in range(plan.rounds):
        paced = post(Load(port=port, topic="paced", requests=plan.paced_requests, rate=plan.rate))
        note(LATENCY, "64 connections", "ms", percentile(paced["latencies_ms"], 99))


def main() -> None:
    """Run the selected benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--systems", type=names_of(TITLES), default=list(TITLES), help=",".join(TITLES))
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    machine, readings, progress = machine_facts(), Readings(), make_progress()
    warn_when_busy(progress, machine)
    for system in options.systems:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
            folder, port = Path(name), free_port()
            with BrokerProcess(folder / "data") as broker:
                command = command_of(system, broker.bootstrap, port)
                server = Server(command, log=folder / "log", is_ready=lambda text: "ready" in text)
                server.start()
                try:
                    measure(system, server, port, plan, readings, progress)
                finally:
                    server.stop()
    console = make_console()
    print_readings(console, readings, {name: TITLES[name] for name in options.systems}, "aiohttp")
    verdicts = [judge(aim, readings) for aim in AIMS]
    print_verdicts(console, verdicts)
    target = options.json or (None if options.quick else RESULTS)
    if target:
        report = {
            "plan": plan.name,
            "machine": machine,
            "systems": package_versions("uvicorn", "starlette", "httptools", "aiohttp", "confluent-kafka"),
            "readings": readings.as_json(),
            "aims": [verdict.as_json() for verdict in verdicts],
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
