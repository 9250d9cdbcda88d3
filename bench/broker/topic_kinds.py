"""`python -m bench.broker.topic_kinds`: topics on disk, in memory, and with a bound, on one broker.

Prebuilt requests on one plain socket, so that the broker is measured and not a client. The rows of topics
with a bound that is not reached show what asking for room costs; those that are full, what dropping does.
CPU seconds of the broker tell more than rates where the machine is not quite quiet.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench.broker.plan import FULL, QUICK
from bench.broker.stage import ClientFailed, Entry, Stage, new_topic, set_up
from bench.broker.systems import SYSTEMS
from bench.broker.systems.system import Flush
from bench.machine import machine_facts
from bench.page_cache import prime, settle
from bench.processes import ServerFailed
from bench.readings import Readings, round_to
from bench.tables import make_progress, number

IN_MEMORY = {"headrace.storage": "memory", "retention.bytes": str(512 * 2**20)}
DROP_OLDEST = {"headrace.overflow": "drop-oldest"}
KINDS = {
    "disk": {},
    "memory": IN_MEMORY,
    "disk, a bound far away": {
        **DROP_OLDEST,
        "headrace.overflow.bytes": str(2**40),
        "segment.bytes": str(2**30),
    },
    "disk, full, drop-oldest": {**DROP_OLDEST, "headrace.overflow.bytes": str(64 * 2**20)},
    "memory, full, drop-oldest": {**IN_MEMORY, **DROP_OLDEST, "headrace.overflow.bytes": str(64 * 2**20)},
}
MEGABYTES_PER_SECOND = 2_000  # what the page cache is made ready for
FILL_SECONDS = 0.15  # what is read again and again must fit into memory
RESULTS = Path("bench/results/topic_kinds.json")


def main() -> None:
    """Run it, print what was seen, and write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker.topic_kinds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it runs, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"default: {RESULTS}, none with --quick")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    machine, readings, progress = machine_facts(), Readings(), make_progress()
    seen: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    try:
        with set_up(
            [SYSTEMS["headrace"]], Flush.OS, plan=plan, readings=readings, progress=progress
        ) as stage:
            stage.entries[0].node.start()
            for turn in range(plan.rounds + 1):
                for kind in KINDS:
                    figures = measure_kind(stage, stage.entries[0], kind)
                    for name, figure in figures.items() if turn else ():
                        seen[kind].setdefault(name, []).append(figure)
    except (ServerFailed, ClientFailed) as failed:
        sys.exit(str(failed))
    medians = {
        kind: {name: round_to(median(figures)) for name, figures in rows.items()}
        for kind, rows in seen.items()
    }
    for kind, rows in medians.items():
        for name, figure in rows.items():
            print(f"{kind:<28} {name:<34} {number(figure):>12}")
    target = options.json or (None if options.quick else RESULTS)
    if target:
        target.write_text(json.dumps({"machine": machine, "medians": medians, "all": seen}, indent=1) + "\n")


def measure_kind(stage: Stage, entry: Entry, kind: str) -> dict[str, float]:
    """One round: batches written, the same read, and requests of one record."""
    seconds = stage.plan.seconds / 2
    load: dict[str, Any] = {"record_bytes": 1024, "seconds": seconds, "settings": KINDS[kind]}
    settle()
    prime(stage.folder, int(seconds * MEGABYTES_PER_SECOND))
    produced = stage.load(entry, "produce", client="wire", topic=new_topic(), **load)
    figures = {
        "produce, 256 KiB batches, MB/s": produced.megabytes_per_second,
        "produce: broker's CPU, s/GB": produced.broker_cpu_per_gigabyte,
    }
    if "full" not in kind:
        topic, short = new_topic(), load | {"seconds": FILL_SECONDS}
        filled = stage.load(entry, "produce", client="wire", topic=topic, keep=True, **short)
        consumed = stage.load(entry, "consume", client="wire", topic=topic, records=filled.records, **load)
        figures["consume, MB/s"] = consumed.megabytes_per_second
        figures["consume: broker's CPU, s/GB"] = consumed.broker_cpu_per_gigabyte
    few = load | {"record_bytes": 100}
    requests = stage.load(entry, "requests", client="wire", topic=new_topic(), in_flight=5, **few)
    figures["requests of one record/s"] = requests.records_per_second
    figures["requests: broker's CPU, µs each"] = requests.broker_cpu_seconds / requests.records * 1e6
    return figures


if __name__ == "__main__":
    main()
