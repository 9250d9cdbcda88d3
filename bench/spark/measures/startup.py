"""From the start of Python to the first typed row: everything cold."""

import time
from collections.abc import Iterable

from bench.spark.spark_program import SparkProgram
from bench.spark.stage import Stage
from bench.spark.systems import System
from bench.spark.topics import filled_topic
from bench.topics import delete_topic

MEASURE = "from the start of Python"
SESSION, FIRST_ROW = "Spark's session", "first typed row"


def measure_startup(stage: Stage, systems: Iterable[System]) -> None:
    """Start each program, several times in turn, and ask it for a row."""
    topic = filled_topic(stage.bootstrap, records=1_000, record_bytes=100)
    chosen = list(systems)
    for _ in range(stage.plan.starts):
        for system in chosen:
            began = time.perf_counter()
            with SparkProgram(system, stage.cores) as program:
                ready = time.perf_counter() - began
                program.ask("first_row", bootstrap=stage.bootstrap, topic=topic)
                row = time.perf_counter() - began
            stage.read(system.name, MEASURE, SESSION, {"s": ready})
            stage.read(system.name, MEASURE, FIRST_ROW, {"s": row})
    delete_topic(stage.bootstrap, topic)
