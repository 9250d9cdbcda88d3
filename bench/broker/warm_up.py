"""Warm-up load, which is not measured."""

from typing import Any

from bench.broker.measures.throughput import SIZES
from bench.broker.stage import Stage, new_topic


def warm_up(stage: Stage) -> None:
    """Run each kind of load on the Kafka brokers for a while: Java compiles only code that has run often.

    The other systems are compiled in advance: the short first round of each row is enough for them.
    """
    seconds = stage.plan.stage_warm_up_seconds
    for entry in stage.speaking_kafka().entries:
        stage.progress.log(f"warming up {entry.system.title}, {stage.flush.value}")
        for record_bytes in SIZES:
            load: dict[str, Any] = {"topic": new_topic(), "record_bytes": record_bytes}
            produced = stage.load(entry, "produce", seconds=seconds / 2, keep=True, **load)
            stage.load(entry, "consume", seconds=seconds / 4, records=produced.records, **load)
        stage.load(entry, "requests", topic=new_topic(), record_bytes=100, seconds=seconds, in_flight=5)
