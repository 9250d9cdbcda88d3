"""A job's function called again for one micro-batch, with plain DataFrames instead of its streams.

```text
source records ──▶ user code ──▶ stateful operator ──▶ user code ──▶ output
└──────────── InputReplay ──────────────┘         └── ResultReplay ──┘
```

Neither computes a stateful operator: it depends on the batches before. `InputReplay` reads a batch's records
again and notes what goes into each operator. `ResultReplay` is given the rows that one operator computed.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.streams.event_time import mark_like
from headrace.streams.query_builder import QueryBuilder, columns_of, value_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.spark.checkpoint import Offsets
    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream

EARLIEST: Final = -2
"""What Spark's Kafka source writes for the first record of a partition."""
PLACEHOLDER: Final = "headrace_placeholder_"
STREAM: Final = "stream"
"""The names of empty DataFrames that stand for rows: with the number of an operator, or for streams."""


def range_options(topic: str, start: Offsets, end: Offsets) -> dict[str, str]:
    """The options by which the source reads what lies between the start and the end of a batch in a topic."""
    ends = end.get(topic, {})
    # A partition that is new in this batch has no start: it is read from its first record.
    begun = {number: start.get(topic, {}).get(number, EARLIEST) for number in ends}
    return {
        # Not subscribe: a partition that came after the batch has neither a start nor an end here.
        "assign": json.dumps({topic: sorted(map(int, ends))}),
        "startingOffsets": json.dumps({topic: begun}),
        "endingOffsets": json.dumps({topic: ends}),
    }


class _Replay(QueryBuilder):
    """A call of a job's function that builds a plain DataFrame; `building` is that of the running query."""

    def __init__(self, builder: QueryBuilder) -> None:
        super().__init__(builder.spark, builder.bootstrap, job=builder.job, state=builder.state)
        self.plan.notes_windows = builder.plan.notes_windows
        self._of = builder

    def stateful(self, make: Callable[[], Rows], inputs: Callable[[], Sequence[DataFrame]]) -> Rows:  # noqa: ARG002
        """The rows of an operator, which is not computed again."""
        number = len(self.operators)
        known = self._of.operators[number]
        frame = self._result(number, known)
        rows = replace(known, frame=frame, step=None, windowed=None if known.windowed is None else frame)
        self.operators.append(rows)
        return rows

    def _result(self, number: int, known: Rows) -> DataFrame:
        return self._empty(str(number), known.frame.schema)

    def _empty(self, name: str, schema: StructType) -> DataFrame:
        return self.spark.createDataFrame([], schema).alias(f"{PLACEHOLDER}{name}")


class InputReplay(_Replay):
    """The job over the records of one batch, up to the operators that keep state."""

    def __init__(self, builder: QueryBuilder, start: Offsets, end: Offsets) -> None:
        super().__init__(builder)
        self.inputs: list[DataFrame] = []
        """What goes into the operators, in the order of the job's function."""
        self._ends = (start, end)

    def stateful(self, make: Callable[[], Rows], inputs: Callable[[], Sequence[DataFrame]]) -> Rows:
        """No rows; what would go into the operator is noted."""
        self.inputs += inputs()
        return super().stateful(make, inputs)

    def _source(self, stream: Stream) -> DataFrame:
        reader = (
            self.spark.read.format("headrace")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("columns", ",".join(columns_of(stream)))
            .options(**range_options(stream.topic, *self._ends))
        )
        return reader.options(**value_options(stream)).load()


class ResultReplay(_Replay):
    """The job over rows that some of its operators computed; the others, and its streams, have no rows."""

    def __init__(self, builder: QueryBuilder, results: Mapping[int, DataFrame]) -> None:
        super().__init__(builder)
        self._results = results

    def _result(self, number: int, known: Rows) -> DataFrame:
        if number not in self._results:
            return super()._result(number, known)
        frame = self._results[number]
        if known.event_time is None:
            return frame
        return mark_like(frame, known.event_time, known.frame.schema[known.event_time].metadata or {})

    def rows(self, stream: Stream) -> Rows:
        """No rows of a stream."""
        return self._rows_of(stream, self._empty(STREAM, self._of.schema(stream)))
