"""The broker's own ceiling: prebuilt requests on one plain socket, the same bytes for Headrace and Kafka."""

from bench.broker.measures.throughput import SIZES
from bench.broker.stage import Stage, new_topic
from bench.page_cache import prime, settle

MEASURE = "ceiling (prebuilt requests)"
IN_FLIGHT = 5


def measure_ceiling(stage: Stage) -> None:
    """Batches of 256 KiB written and fetched, and requests of one record."""
    for record_bytes, size in SIZES.items():
        _measure_batches(stage.speaking_kafka(), record_bytes, size)
    _measure_requests(stage.speaking_kafka())


def _measure_batches(stage: Stage, record_bytes: int, size: str) -> None:
    for number, entry in stage.turns(stage.plan.rounds):
        settle()
        prime(stage.folder, 2 * stage.plan.prime_megabytes(record_bytes))
        topic = {"client": "wire", "topic": new_topic(), "record_bytes": record_bytes}
        seconds = stage.plan.seconds if number else stage.plan.warm_up_seconds
        produced = stage.load(entry, "produce", seconds=seconds, keep=True, **topic)
        consumed = stage.load(entry, "consume", seconds=seconds, records=produced.records, **topic)
        if number:
            cell = stage.cell(size)
            stage.read(entry, MEASURE, f"produce, {cell}", MB_s=produced.megabytes_per_second)
            stage.read(entry, MEASURE, f"consume, {cell}", MB_s=consumed.megabytes_per_second)


def _measure_requests(stage: Stage) -> None:
    for number, entry in stage.turns(stage.plan.rounds):
        seconds = stage.plan.seconds if number else stage.plan.warm_up_seconds
        topic = {"client": "wire", "topic": new_topic(), "record_bytes": 100}
        outcome = stage.load(entry, "requests", seconds=seconds, in_flight=IN_FLIGHT, **topic)
        if number:
            cell = stage.cell("one record a request", f"{IN_FLIGHT} in flight")
            stage.read(entry, MEASURE, cell, requests_s=outcome.records_per_second)
