"""The capacity of the broker: prebuilt requests on one socket, the same bytes for Headrace and Kafka."""

from typing import Any

from bench.broker.measures.throughput import SIZES
from bench.broker.stage import Stage, new_topic
from bench.page_cache import prime, settle

MEASURE = "ceiling (prebuilt requests)"
IN_FLIGHT = 5
MEGABYTES_PER_SECOND = 2_000  # what memory is made ready for


def measure_ceiling(stage: Stage) -> None:
    """Batches of 256 KiB written and fetched, and requests of one record."""
    for record_bytes, size in SIZES.items():
        _measure_batches(stage.speaking_kafka(), record_bytes, size)
    _measure_requests(stage.speaking_kafka())


def _measure_batches(stage: Stage, record_bytes: int, size: str) -> None:
    seconds = stage.plan.seconds / 2  # without a client's costs, half the time moves as much data
    cell = stage.cell(size)
    for number, entry in stage.turns(stage.plan.rounds):
        settle()
        prime(stage.folder, int(seconds * MEGABYTES_PER_SECOND))
        load: dict[str, Any] = {"topic": new_topic(), "record_bytes": record_bytes, "seconds": seconds}
        produced = stage.load(entry, "produce", client="wire", keep=True, **load)
        consumed = stage.load(entry, "consume", client="wire", records=produced.records, **load)
        if number:
            stage.read(entry, MEASURE, f"produce, {cell}", {"MB/s": produced.megabytes_per_second})
            stage.read(entry, MEASURE, f"consume, {cell}", {"MB/s": consumed.megabytes_per_second})


def _measure_requests(stage: Stage) -> None:
    cell = stage.cell("one record a request", f"{IN_FLIGHT} in flight")
    for number, entry in stage.turns(stage.plan.rounds):
        load: dict[str, Any] = {"topic": new_topic(), "record_bytes": 100, "seconds": stage.plan.seconds / 2}
        outcome = stage.load(entry, "requests", client="wire", in_flight=IN_FLIGHT, **load)
        if number:
            stage.read(entry, MEASURE, cell, {"requests/s": outcome.records_per_second})
