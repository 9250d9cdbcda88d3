"""`python -m bench.streams.program TASK`: Headrace as an application with one job."""

import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace import App, hopping, session, sliding, tumbling
from headrace.client.cluster import Cluster
from headrace.spark.session import local_session
from headrace.streams.job import Job
from headrace.streams.job_run import JobRun
from headrace.streams.report import rows_of
from headrace.streams.rows import Operators, Rows
from headrace.streams.run_context import RunContext
from headrace.streams.stream import Stream
from headrace.streams.table_view import TableView

EVENT = "id long, amount double, at timestamp"
MORE = {"spark.driver.memory": "4g"}
TURN_SECONDS = 0.2


def main() -> None:
    """Run until SIGTERM."""
    task = json.loads(sys.argv[1])
    stopped = threading.Event()
    spark = local_session("bench", cores=task["cores"], more=MORE)
    spark.streams.addListener(BatchReporter())
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True) as state,
        Cluster.of(task["bootstrap"]) as cluster,
    ):
        place = RunContext(spark=spark, bootstrap=task["bootstrap"], cluster=cluster, state=Path(state))
        job = job_of(task)
        place.folder(job).reset(kind="stream")  # the log may know the job from a trial before
        _work(JobRun(job, place), stopped, spark)


def _work(run: JobRun, stopped: threading.Event, spark: SparkSession) -> None:
    run.start()
    while run.is_active() and not stopped.wait(TURN_SECONDS):
        pass
    run.stop()
    spark.stop()


def job_of(task: dict[str, Any]) -> Job:
    """The application's job for a task."""
    app, work = App("bench"), task["work"]
    if work["kind"] == "view":
        people = app.table(task["events"], "id long, name string, dept long", key="id")
        departments = app.table(task["table"], "id long, title string", key="id")
        into = app.view(task["output"], key="id")
        return app.job(into=into, name="work")(lambda: view_of(people, departments))
    events = app.stream(
        task["events"],
        EVENT,
        event_time="at",
        watermark_delay=f"{work['lateness_ms']} ms",
        max_records=task["max_records"],
    )
    late = task["late"] if work["routes_late"] else None
    decorate = app.job(into=app.topic(task["output"], key="id"), name="work", late_topic=late)
    if work["kind"] == "table":
        table = app.table(task["table"], "id long, name string, city string", key="id")
        return decorate(lambda: events.join(table, on="id", as_of="event", how="left"))
    if work["kind"] == "streams":
        payments = app.stream(
            task["payments"],
            "id long, paid double, at timestamp",
            event_time="at",
            watermark_delay=f"{work['lateness_ms']} ms",
            max_records=task["max_records"],
        )
        within = f"{work['within_ms']} ms"
        return decorate(lambda: events.join(payments, on="id", within=within, how="inner"))
    return decorate(lambda: windows_of(events, work))


def view_of(people: Any, departments: Any) -> TableView:
    """Every person with their department."""
    view: TableView = people.join(departments, on={"dept": "id"}, how="left")
    return view


def windows_of(events: Stream, work: dict[str, Any]) -> Operators | DataFrame:
    """Counts and sums by window."""
    if work["is_native"]:
        return _native(events, work)
    windows = {
        "tumbling": lambda: tumbling(f"{work['size_ms']} ms"),
        "hopping": lambda: hopping(f"{work['size_ms']} ms", every=f"{work['every_ms']} ms"),
        "sliding": lambda: sliding(f"{work['size_ms']} ms"),
        "session": lambda: session(f"{work['gap_ms']} ms"),
    }
    rows: Rows = events.window(windows[work["kind"]](), by="id").agg(
        F.count("*").alias("n"), F.sum("amount").alias("total")
    )
    return rows


def _native(events: Stream, work: dict[str, Any]) -> DataFrame:
    window = F.window("at", f"{work['size_ms']} milliseconds", f"{work['every_ms']} milliseconds")
    return (
        events.df.groupBy(window, "id")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        .select("window.start", "window.end", "id", "n", "total")
    )


class BatchReporter(StreamingQueryListener):
    """Prints each micro-batch to standard output."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Print the reason, if the query failed."""
        if event.exception:
            print(event.exception, flush=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Print the number of rows and the duration."""
        progress = event.progress
        printed = {
            "batch": progress.batchId,
            "rows": rows_of(json.loads(progress.json)),
            "ms": progress.durationMs.get("triggerExecution", 0),
            "at_s": time.time(),
        }
        print(json.dumps(printed), flush=True)


if __name__ == "__main__":
    main()
