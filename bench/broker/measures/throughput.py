"""Maximum produce and consume throughput, and its cost for the broker.

If the client's cores are busy and the broker's are not, the client is the bottleneck; then the CPU time of
the broker per GB is more meaningful than MB/s.
"""

from typing import Any

from bench.broker.load.job import Outcome
from bench.broker.stage import Entry, Stage, new_topic
from bench.broker.systems.system import Flush
from bench.page_cache import prime, settle

SIZES = {1024: "1 KiB", 100: "100 B"}
PARTITIONS = (1, 4)


def measure_throughput(stage: Stage) -> None:
    """Each size with one and four partitions; by TLS and flushed with one, and flushed without consuming."""
    for partitions in PARTITIONS if stage.flush is Flush.OS else (1,):
        for record_bytes in SIZES:
            _measure_row(stage.with_partitions(partitions), record_bytes, partitions)


def row_name(stage: Stage, record_bytes: int, partitions: int) -> str:
    """Such as "1 KiB, 4 partitions, page cache"."""
    return stage.cell(SIZES[record_bytes], f"{partitions} partition{'s' if partitions > 1 else ''}")


def _measure_row(stage: Stage, record_bytes: int, partitions: int) -> None:
    cell = row_name(stage, record_bytes, partitions)
    consumes = stage.flush is not Flush.ALWAYS
    for number, entry in stage.turns(stage.plan.rounds):
        seconds = stage.plan.seconds if number else stage.plan.warm_up_seconds
        settle()
        if entry.system.speaks_kafka:  # the others write too little to notice
            prime(stage.folder, stage.plan.prime_megabytes(seconds, record_bytes))
        topic: dict[str, Any] = {"topic": new_topic(), "record_bytes": record_bytes, "partitions": partitions}
        produced = stage.load(entry, "produce", seconds=seconds, keep=consumes, **topic)
        _read(stage, entry, "produce", cell, produced, number)
        if consumes:
            consumed = stage.load(entry, "consume", seconds=seconds, records=produced.records, **topic)
            _read(stage, entry, "consume", cell, consumed, number)


def _read(stage: Stage, entry: Entry, measure: str, cell: str, outcome: Outcome, number: int) -> None:
    if number == 0:
        return
    rates = {"MB/s": outcome.megabytes_per_second, "records/s": outcome.records_per_second}
    cpu = {"broker": outcome.broker_cpu_seconds, "client": outcome.client_cpu_seconds}
    busy = {who: seconds / outcome.seconds for who, seconds in cpu.items()}
    stage.read(entry, measure, cell, rates)
    stage.read(entry, f"{measure}: broker's CPU", cell, {"s/GB": outcome.broker_cpu_per_gigabyte})
    stage.read(entry, f"{measure}: cores busy", cell, busy)
