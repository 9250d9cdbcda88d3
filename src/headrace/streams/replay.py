"""A micro-batch once more: a job's streams as plain DataFrames of the records that one batch had."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from headrace.spark.row_checks import FAILED_OFFSETS
from headrace.streams.building import Building, columns_of, value_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.spark.checkpoint import Offsets
    from headrace.spark.row_checks import FailedOffsets
    from headrace.streams.stream import Stream

FROM_THE_FIRST: Final = -2
"""What Spark's Kafka source writes for the first record that is there."""


def range_options(
    topic: str, start: Offsets, end: Offsets, failed: FailedOffsets | None = None
) -> dict[str, str]:
    """The options by which the source reads what lies between the start and the end of a batch in a topic."""
    ends = end.get(topic, {})
    # A partition that is new in this batch has no start: it is read from its first record.
    begun = {number: start.get(topic, {}).get(number, FROM_THE_FIRST) for number in ends}
    options = {
        # Not subscribe: a partition that came after the batch has neither a start nor an end here.
        "assign": json.dumps({topic: sorted(map(int, ends))}),
        "startingOffsets": json.dumps({topic: begun}),
        "endingOffsets": json.dumps({topic: ends}),
    }
    return options | ({FAILED_OFFSETS: json.dumps(failed)} if failed else {})


class Replay(Building):
    """The making of a job's query over the records of one batch, for those who need to see them again."""

    def __init__(
        self, building: Building, start: Offsets, end: Offsets, *, failed: FailedOffsets | None = None
    ) -> None:
        super().__init__(building.spark, building.bootstrap, job=building.job, state=building.state)
        self.plan.late = building.plan.late
        self._ends = (start, end)
        self._failed = failed

    def _source(self, stream: Stream) -> DataFrame:
        reader = (
            self.spark.read.format("headrace")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("columns", ",".join(columns_of(stream)))
            .options(**range_options(stream.topic, *self._ends, self._failed))
        )
        return reader.options(**value_options(stream)).load()
