"""End-to-end latency at a constant rate: producer and consumer in one process, with the same clock."""

from bench.broker.stage import Stage, new_topic
from bench.page_cache import settle

MEASURE = "end-to-end latency at 1,000 records/s"
RATE = 1_000
RECORD_BYTES = 100


def measure_latency(stage: Stage) -> None:
    """The percentiles of each round, without the warm-up."""
    plan = stage.plan
    for number, entry in stage.turns(plan.latency_rounds):
        if number == 0:
            continue
        settle()
        outcome = stage.load(
            entry,
            "latency",
            topic=new_topic(),
            record_bytes=RECORD_BYTES,
            rate=RATE,
            seconds=plan.latency_seconds,
            warm_up_seconds=plan.latency_warm_up_seconds,
        )
        for name, milliseconds in outcome.latencies_ms.items():
            stage.read(entry, MEASURE, stage.cell(name), {"ms": milliseconds})
