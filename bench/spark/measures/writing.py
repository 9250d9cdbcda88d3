"""Rows a second from Spark into the log."""

from bench.spark.measures.reading import SIZES
from bench.spark.spark_program import SparkProgram
from bench.spark.stage import Stage
from bench.spark.topics import filled_topic
from bench.topics import PARTITIONS, delete_topic, new_topic

MEASURE = "from Spark into the log"
FAN_OUT = 100
LEARNING_BATCHES = 2
"""Micro-batches that do not count: what is written shows a sink how to write the next."""
EXACTLY_ONCE = "exactly once, beside at least once"


def measure_writing(stage: Stage) -> None:
    """Write batches, and streams through each sink of each system, all in turn."""
    for size, record_bytes in SIZES.items():
        rows = stage.plan.written_rows if record_bytes == SIZES["100 B"] else stage.plan.written_rows // 4
        for number, program in stage.turns(stage.plan.rounds):
            seconds = _write_batch(stage, program, rows, record_bytes)
            if number:
                stage.read(program.system.name, MEASURE, f"batch, {size}", {"rows/s": rows / seconds})
        _measure_streams(stage, size, rows, record_bytes)


def _measure_streams(stage: Stage, size: str, rows: int, record_bytes: int) -> None:
    step = rows // FAN_OUT
    batches = LEARNING_BATCHES + stage.plan.written_batches
    seeds = filled_topic(stage.bootstrap, records=step * batches, record_bytes=100)
    for number, program in stage.turns(stage.plan.rounds):
        for sink in program.system.sinks:
            rate = _write_stream(stage, program, sink, seeds, step, record_bytes)
            if number:
                stage.read(program.system.name, MEASURE, f"stream, {sink}, {size}", {"rows/s": rate})
                # A separate row: exactly-once of one system is compared with at-least-once of the other.
                if sink == program.system.sinks[-1]:
                    stage.read(program.system.name, MEASURE, f"{EXACTLY_ONCE}, {size}", {"rows/s": rate})
    delete_topic(stage.bootstrap, seeds)


def _write_batch(stage: Stage, program: SparkProgram, rows: int, record_bytes: int) -> float:
    topic = new_topic(stage.bootstrap)
    outcome = program.ask(
        "write_batch", bootstrap=stage.bootstrap, topic=topic, rows=rows, record_bytes=record_bytes
    )
    delete_topic(stage.bootstrap, topic)
    return float(outcome["seconds"])


def _write_stream(
    stage: Stage, program: SparkProgram, sink: str, seeds: str, step: int, record_bytes: int
) -> float:
    topic = new_topic(stage.bootstrap)
    outcome = program.ask(
        "write_stream",
        bootstrap=stage.bootstrap,
        topic=topic,
        name=sink,
        seeds=seeds,
        fan_out=FAN_OUT,
        step=step - step % PARTITIONS,
        record_bytes=record_bytes,
        warm_up=LEARNING_BATCHES,
    )
    delete_topic(stage.bootstrap, topic)
    return float(outcome["rows"]) / float(outcome["seconds"])
