"""`python -m bench.broker.compaction`: a topic of many updates, compacted while it is written and read.

Three clients run at once: one writes 10 M updates of 1 M keys as fast as possible, one reads them from the
start, and one measures the latency of another topic. All records read are checked: offsets increase, and each
key ends with its latest value. When compaction is complete, the topic is read again.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.broker.load.job import Outcome
from bench.broker.plan import FULL
from bench.broker.stage import ClientFailed, Entry, Stage, set_up
from bench.broker.systems import SYSTEMS
from bench.broker.systems.system import Flush
from bench.machine import machine_facts
from bench.processes import ServerFailed, cpu_seconds, resident_megabytes
from bench.readings import Readings, round_to
from bench.tables import make_progress, number

TOPIC = "updates"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(64 * 2**20), "min.cleanable.dirty.ratio": "0.3"}
RECORD_BYTES = 100
QUIET_SECONDS = 20  # compaction is complete if it has removed nothing for this long
SETTLE_SECONDS = 300
LATENCY_SECONDS = 20.0
RESULTS = Path("bench/results/compaction.json")


def main() -> None:
    """Run the benchmark, print the results, and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker.compaction", description=__doc__)
    parser.add_argument("--updates", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", default=RESULTS, help=f"default: {RESULTS}")
    options = parser.parse_args()
    machine, progress = machine_facts(), make_progress()
    try:
        with set_up(
            [SYSTEMS["headrace"]], Flush.OS, plan=FULL, readings=Readings(), progress=progress
        ) as stage:
            seen = measure_compaction(stage, options.updates, options.keys)
    except (ServerFailed, ClientFailed) as failed:
        sys.exit(str(failed))
    for name, figure in seen.items():
        print(f"{name:<44} {number(figure):>14}")
    report = {"machine": machine, "updates": options.updates, "keys": options.keys, "seen": seen}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")


def measure_compaction(stage: Stage, updates: int, keys: int) -> dict[str, float]:
    """The results, each with its unit in the name."""
    entry = stage.entries[0]
    entry.node.start()
    _make_topic(entry)
    load: dict[str, Any] = {"client": "updates", "topic": TOPIC, "record_bytes": RECORD_BYTES, "seconds": 0}
    load |= {"records": updates, "keys": keys}
    with _peak_memory(entry) as peak:
        cpu_before = cpu_seconds(entry.node.pid)
        seen = _write_and_read(stage, entry, load)
        seen["broker's CPU until compacted, s"] = cpu_seconds(entry.node.pid) - cpu_before
        stage.progress.log("reading the compacted topic")
        seen["read when compacted, records"] = stage.load(entry, "consume", **load).records
    seen["broker's memory at most, MB"] = max(peak)
    if seen["read when compacted, records"] == updates:
        raise ClientFailed("Compaction removed nothing: look for its errors in the broker's log.")
    return {name: round_to(figure, 7) for name, figure in seen.items()}


def _write_and_read(stage: Stage, entry: Entry, load: dict[str, Any]) -> dict[str, float]:
    """Run writer, reader and latency client until compaction is complete."""
    stage.progress.log(f"writing {load['records']:,} updates over {load['keys']:,} keys, and reading them")
    with ThreadPoolExecutor(2) as pool:
        latency = pool.submit(_latency, stage, entry)
        reader = pool.submit(stage.load, entry, "consume", **load)
        written = stage.load(entry, "produce", **load)
        log_bytes, settled = _log_bytes(stage), _settle(stage)
        read, latencies = reader.result(), latency.result().latencies_ms
    return {
        "written, records/s": written.records_per_second,
        "read beside it, records/s": read.records_per_second,
        "read beside it, records": read.records,
        "latency of another topic beside it, p50 ms": latencies["p50"],
        "latency of another topic beside it, p99 ms": latencies["p99"],
        "log after the last write, MB": log_bytes / 1e6,
        **settled,
    }


def _settle(stage: Stage) -> dict[str, float]:
    """Wait until the log has not shrunk for `QUIET_SECONDS`."""
    stage.progress.log("waiting until compaction has nothing more to do")
    started = shrunk = time.monotonic()
    smallest = _log_bytes(stage)
    while time.monotonic() < min(shrunk + QUIET_SECONDS, started + SETTLE_SECONDS):
        time.sleep(0.1)
        now = _log_bytes(stage)
        if now < smallest:
            smallest, shrunk = now, time.monotonic()
    return {"compacted after the last write, s": shrunk - started, "log when compacted, MB": smallest / 1e6}


def _make_topic(entry: Entry) -> None:
    admin = AdminClient({"bootstrap.servers": entry.node.address})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)])[TOPIC].result(30)


def _latency(stage: Stage, entry: Entry) -> Outcome:
    details: dict[str, Any] = {"topic": "beside", "record_bytes": RECORD_BYTES, "rate": 1_000}
    return stage.load(entry, "latency", seconds=LATENCY_SECONDS, warm_up_seconds=2.0, **details)


def _log_bytes(stage: Stage) -> int:
    total = 0
    for file in stage.folder.glob(f"**/{TOPIC}-0/*.log"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # compaction has just replaced it
            continue
    return total


@contextmanager
def _peak_memory(entry: Entry) -> Iterator[list[float]]:
    """The peak memory of the broker and its compaction process, sampled ten times a second."""
    seen: list[float] = []
    done = Event()

    def watch() -> None:
        while not done.wait(0.1):
            seen.append(resident_megabytes(entry.node.pid))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    main()
