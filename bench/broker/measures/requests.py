"""Requests a second without batching: one record of 100 B in each."""

from typing import Any

from bench.broker.stage import Stage, new_topic

MEASURE = "requests of one record"
RECORD_BYTES = 100
IN_FLIGHT = {5: "5 in flight", 1: "one at a time"}


def measure_requests(stage: Stage) -> None:
    """Several in flight, and one at a time."""
    for in_flight, words in IN_FLIGHT.items():
        for number, entry in stage.turns(stage.plan.rounds):
            seconds = stage.plan.seconds if number else stage.plan.warm_up_seconds
            topic: dict[str, Any] = {"topic": new_topic(), "record_bytes": RECORD_BYTES}
            outcome = stage.load(entry, "requests", seconds=seconds, in_flight=in_flight, **topic)
            if number:
                stage.read(entry, MEASURE, stage.cell(words), {"requests/s": outcome.records_per_second})
