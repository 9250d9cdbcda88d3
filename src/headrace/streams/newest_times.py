"""The newest event time of a stream, noted after each batch for the heartbeats of streams that are idle."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.event_time import TimeHints, note_seen

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.spark.transactional_batch import Batch

NEWEST: Final = "headrace.newest."
"""The observed metric of a topic: the newest event time of a batch, in milliseconds since 1970."""


def observe_newest(rows: DataFrame, topic: str, at: Column) -> DataFrame:
    """The same rows, of which Spark notes the newest time."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return rows.observe(NEWEST + topic, F.max(F.unix_millis(at)).alias("newest"))


class NewestTimes:
    """Tells the sources of a job how far one of its streams has come."""

    def __init__(self, spark: SparkSession, topic: str, folder: str) -> None:
        self._spark = spark
        self._topic = topic
        self._hints = TimeHints(folder)

    def note(self, batch: Batch) -> None:  # noqa: ARG002  every batch is looked at
        """Write down the newest time of a batch that was computed just now; it adds no rows to it."""
        newest_ms = self._observed()
        if newest_ms is not None:
            note_seen(self._hints, self._topic, newest_ms, now_s=time.time())

    def _observed(self) -> int | None:
        from headrace.spark.transactional_batch import QUERY_ID

        query = self._spark.sparkContext.getLocalProperty(QUERY_ID)
        session: Any = self._spark._jsparkSession
        execution = session.streams().get(query).streamingQuery().lastExecution()
        found = execution.observedMetrics().get(NEWEST + self._topic)
        return None if found.isEmpty() or found.get().isNullAt(0) else int(found.get().getLong(0))
