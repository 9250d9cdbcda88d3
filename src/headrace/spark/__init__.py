"""Spark on the log: `format("headrace")` reads and writes topics, without a jar."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Make `format("headrace")` known to a session, and to writers in this thread."""
    from headrace.spark.source import HeadraceSource

    # The planning processes know nothing of the session, and must know how many tasks can run at once. A
    # class that no module holds travels with its attributes; one that is imported would lose them.
    cores = session.sparkContext.defaultParallelism
    registered = type(
        "Headrace", (HeadraceSource,), {"parallelism": cores, "__module__": "headrace.registered"}
    )
    session.dataSource.register(registered)
    # Batch reads narrow what they fetch by the filters of the query, which Spark withholds by default.
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    activate(session)


def activate(session: SparkSession) -> None:
    """Make a session the one of this thread; other threads than the one that made it write only after this.

    Spark looks for the format of a writer in the active session of the calling thread.
    """
    from headrace.spark.internals import set_active_session

    set_active_session(session)
