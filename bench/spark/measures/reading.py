"""Rows a second from the log into Spark."""

from bench.spark.spark_program import SparkProgram
from bench.spark.stage import Stage
from bench.spark.topics import filled_topic
from bench.topics import delete_topic

MEASURE = "from the log into Spark"
SIZES = {"100 B": 100, "1 KiB": 1024}
RAW, TYPED, WINDOWED, STREAM = "raw", "typed JSON", "JSON in windows", "JSON in windows, as a stream"
ACTS = {RAW: "read_raw", TYPED: "read_typed", WINDOWED: "read_windowed", STREAM: "read_stream"}


def measure_reading(stage: Stage) -> None:
    """Read one topic of each size in each way, all systems in turn."""
    for size, record_bytes in SIZES.items():
        records = stage.plan.small_records if record_bytes == SIZES["100 B"] else stage.plan.large_records
        topic = filled_topic(stage.bootstrap, records=records, record_bytes=record_bytes)
        for way in ACTS:
            for number, program in stage.turns(stage.plan.rounds):
                seconds = _read(stage, program, way, topic, records)
                if number:
                    rate = {"rows/s": records / seconds, "MB/s": records * record_bytes / seconds / 1e6}
                    stage.read(program.system.name, MEASURE, f"{way}, {size}", rate)
        delete_topic(stage.bootstrap, topic)


def _read(stage: Stage, program: SparkProgram, way: str, topic: str, records: int) -> float:
    expected = {"records": records} if way == WINDOWED else {}
    outcome = program.ask(ACTS[way], bootstrap=stage.bootstrap, topic=topic, **expected)
    return float(outcome["seconds"])
