"""`python -m bench.queue`: messages/s and p99 of acknowledge-each consumption, with 1, 4 and 16 consumers."""

import argparse
import json
import subprocess
import sys
import tempfile
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.aims import Aim, judge
from bench.broker.systems import SYSTEMS as BROKERS
from bench.broker.systems.system import Flush, Node, System
from bench.choices import names_of
from bench.machine import machine_facts, package_versions
from bench.queue.job import Job, Outcome
from bench.queue.plan import FULL, QUICK, Plan
from bench.queue.rabbitmq import RABBITMQ, missing
from bench.readings import Readings, percentile, round_to
from bench.tables import make_console, make_progress, print_readings, print_verdicts, warn_when_busy

SYSTEMS: dict[str, System] = {name: BROKERS[name] for name in ("headrace", "kafka", "nats")} | {
    RABBITMQ.name: RABBITMQ
}
RESULTS = Path("bench/results/queue.json")
LOAD_SECONDS = 240
THROUGHPUT, LATENCY = "acknowledged one by one", "from sending to acknowledged, p99"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A system with one client: a column of the tables."""

    name: str
    title: str
    system: System
    client: str


def rows(systems: list[System]) -> list[Row]:
    """The columns; Headrace has two, with its own client and with librdkafka."""
    found = [Row(name=s.name, title=s.title, system=s, client=s.client) for s in systems]
    own = [
        Row(name="own", title="Headrace, queue(…)", system=s, client="headrace")
        for s in systems
        if s.name == "headrace"
    ]
    return found + own


AIMS = tuple(
    Aim(measure=measure, cell=f"{consumers} consumers", unit=unit, against=against, **limit)  # type: ignore[arg-type]
    for against in ("kafka", "rabbitmq")
    for measure, unit, limit in (
        (THROUGHPUT, "messages/s", {"at_least": 1.0}),
        (LATENCY, "ms", {"at_most": 1.0}),
    )
    for consumers in FULL.consumers
)


class ClientFailed(Exception):
    """A client program failed; the message contains its output."""


def load(row: Row, node: Node, job: Job) -> Outcome:
    """Run one client program."""
    command = [sys.executable, "-m", "bench.queue.clients", row.client, job.to_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    if done.returncode:
        raise ClientFailed(f"{row.title} ({node.address}): {done.stderr[-2000:]}")
    return Outcome.from_json(done.stdout.splitlines()[-1])


def measure(row: Row, node: Node, plan: Plan, readings: Readings, progress: Console) -> None:
    """All loads of one column, one after the other."""
    for consumers in plan.consumers:
        first = 0 if consumers == plan.consumers[0] else 1
        for number in range(first, plan.rounds + 1):
            messages = plan.messages if number else plan.warm_up_messages
            job = Job(
                act="drain",
                address=node.address,
                topic=f"q{uuid.uuid4().hex[:12]}",
                consumers=consumers,
                messages=messages,
                message_bytes=plan.message_bytes,
            )
            rate = messages / load(row, node, job).seconds
            if number:
                note(readings, progress, row, THROUGHPUT, consumers, "messages/s", rate)
        job = Job(
            act="latency",
            address=node.address,
            topic=f"q{uuid.uuid4().hex[:12]}",
            consumers=consumers,
            messages=plan.latency_messages,
            message_bytes=plan.message_bytes,
            rate=plan.rate,
        )
        latencies = sorted(load(row, node, job).latencies_ms)
        note(readings, progress, row, LATENCY, consumers, "ms", percentile(latencies, 99))


def note(
    readings: Readings, progress: Console, row: Row, name: str, consumers: int, unit: str, value: float
) -> None:
    """Add one reading, and print it."""
    cell = f"{consumers} consumers"
    readings.add(measure=name, cell=cell, unit=unit, system=row.name, value=value)
    progress.log(f"{name} · {cell} · {row.title}: {round_to(value):,g} {unit}")


def run(systems: list[System], plan: Plan, readings: Readings, progress: Console) -> str | None:
    """Measure each system separately; returns why the run ended early, if it did."""
    for system in systems:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
            node = system.set_up(folder, Flush.OS)
            stack.callback(node.close)
            node.start()
            for row in rows([system]):
                try:
                    measure(row, node, plan, readings, progress)
                except (ClientFailed, subprocess.TimeoutExpired) as fault:
                    return f"The run ended early, and the tables show what was measured before that: {fault}"
    return None


def main() -> None:
    """Run the selected benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument("--systems", type=names_of(SYSTEMS), default=list(SYSTEMS), help=",".join(SYSTEMS))
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    machine, readings, progress = machine_facts(), Readings(), make_progress()
    warn_when_busy(progress, machine)
    systems = [SYSTEMS[name] for name in options.systems]
    if RABBITMQ in systems and (reason := missing()):
        systems.remove(RABBITMQ)
        progress.log(f"[bold red]RABBITMQ IS NOT COMPARED: {reason}[/]")
    failure = run(systems, plan, readings, progress)
    console = make_console()
    print_readings(console, readings, {row.name: row.title for row in rows(systems)}, "kafka")
    verdicts = [judge(aim, readings) for aim in AIMS]
    print_verdicts(console, verdicts)
    target = options.json or (None if options.quick or failure else RESULTS)
    if target:
        report = {
            "plan": plan.name,
            "machine": machine,
            "systems": {system.name: system.version() for system in systems},
            "clients": package_versions("confluent-kafka", "nats-py", "pika"),
            "readings": readings.as_json(),
            "aims": [verdict.as_json() for verdict in verdicts],
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    sys.exit(failure)


if __name__ == "__main__":
    main()
