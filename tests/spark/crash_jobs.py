"""Two jobs in a process that may be killed at any step: one without state, and one that counts in windows.

    python -m tests.spark.crash_jobs BOOTSTRAP FOLDER [JOB STEP BATCH]

Both read all that is there and end. At the named step of the named batch the process says so on standard
output and waits for a line on standard input, if it lives to see it.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark import register
from headrace.spark.session import local_session
from headrace.spark.transactional_sink import TransactionalSink

CAPITALS, COUNTS = "capitals", "counts"
EVENTS, TICKS = "events", "ticks"
RECORDS_OF_A_BATCH = 100
WINDOW_SECONDS = 20
REACHED = "reached"


def read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    source = spark.readStream.format("headrace").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    return source.option("maxOffsetsPerTrigger", RECORDS_OF_A_BATCH).load()


def capitals(rows: DataFrame, poison: Path) -> DataFrame:
    """The values in capitals; a task that finds the file `poison` eats it and dies."""

    def taste(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if poison.exists():
                poison.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    text = F.upper(F.col("value").cast("string")).cast("binary").alias("value")
    return rows.select("key", "value").mapInArrow(taste, "key binary, value binary").select("key", text)


def counts(rows: DataFrame) -> DataFrame:
    """How many ticks of each key there are in each window; a tick's value is its second."""
    second = F.col("value").cast("string").cast("long")
    ticks = rows.select(F.col("key"), F.timestamp_seconds(second).alias("at")).withWatermark(
        "at", "0 seconds"
    )
    window = F.window("at", f"{WINDOW_SECONDS} seconds")
    counted = ticks.groupBy(window.alias("window"), "key").agg(F.count("*").alias("n"))
    start = F.unix_timestamp(F.col("window.start"))
    return counted.select("key", F.concat_ws(" ", start, F.col("key").cast("string"), "n").alias("value"))


class Stop:
    """The step at which the process waits to be struck; without one it waits nowhere."""

    def __init__(self, job: str = "", step: str = "", batch: str = "") -> None:
        self.job = job
        self._at = (step, batch)
        self._passed = threading.Event()

    def steps(self, step: str, batch: int) -> None:
        if self._at == (step, str(batch)) and not self._passed.is_set():
            print(REACHED, flush=True)
            sys.stdin.readline()
            self._passed.set()

    def wait(self, query: StreamingQuery) -> None:
        """Return when the step was passed, or will never be."""
        while query.isActive and not self._passed.wait(0.1):
            pass


def main(bootstrap: str, folder: str, *where: str) -> None:
    spark = local_session("crash", cores=2)
    register(spark)
    stop = Stop(*where)
    jobs = {
        CAPITALS: capitals(read(spark, bootstrap, EVENTS), Path(folder) / "poison"),
        COUNTS: counts(read(spark, bootstrap, TICKS)),
    }
    queries = []
    # The job that is to be struck goes first and alone: the other one shall not be done before that.
    for job in sorted(jobs, key=lambda job: job != stop.job):
        # The job without state writes by its tasks, the other one by the driver.
        limits = {"spool": False, "inline_bytes": 0} if job == CAPITALS else {}
        steps = stop.steps if job == stop.job else None
        sink = TransactionalSink(spark, bootstrap, job=job, group=job, topics=[job], steps=steps, **limits)
        checkpoint = str(Path(folder) / job)
        queries.append(sink.start(jobs[job], checkpoint=checkpoint, trigger={"availableNow": True}))
        if job == stop.job:
            stop.wait(queries[-1])
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as fault:  # noqa: BLE001 - whatever it was, this process ends and is started again
        print(fault, file=sys.stderr, flush=True)
        os._exit(1)  # a session that is stopped in an orderly way takes seconds
    os._exit(0)
