"""Two jobs in a process that may be killed at any step: one without state, and one that counts in windows.

    python -m tests.spark.crash_jobs BOOTSTRAP FOLDER [JOB STEP:N ...]

Both read all that is there and end. When the named job reaches one of the named steps, after N batches of its
process that reached it before, the process prints the step and waits for a line on standard input.
"""

import os
import signal
import sys
import threading
from collections import Counter
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
    """The steps of one job at which the process waits for a kill."""

    def __init__(self, job: str = "", *points: str) -> None:
        self.job = job
        self._left = set(points)
        self._reached = Counter[str]()
        self._passed = threading.Event()

    def steps(self, step: str, _: int) -> None:
        point = f"{step}:{self._reached[step]}"
        self._reached[step] += 1
        if point in self._left:
            print(REACHED, step, flush=True)
            sys.stdin.readline()
            self._left.remove(point)
            if not self._left:
                self._passed.set()

    def wait(self, query: StreamingQuery) -> None:
        """Return when all steps were passed, or the query has ended."""
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
