"""Windows and sessions put together from pieces of time, which tasks sum up before anything is shuffled.

Where a window is all that a job wants of a stream, the source itself puts its records into pieces as it
parses them, and Spark sees a row for each key and piece.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import LongType, StructField, StructType

from headrace.columns.measures import part_names
from headrace.spark.keyed_stage import arrow_schema
from headrace.spark.sums import DEAD_RECORDS, NEWEST, RECORDS, TIME, UNTIMED_RECORDS, Sums
from headrace.streams.aggregates import Uncombinable, read_aggregates
from headrace.streams.building import current_building
from headrace.streams.columns import quoted
from headrace.streams.native_windows import END, START, end_metadata, timed
from headrace.streams.stages import staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.columns.cuts import Cut
    from headrace.streams.aggregates import Aggregates
    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream

COUNTS: Final = (NEWEST, RECORDS, DEAD_RECORDS, UNTIMED_RECORDS)
"""What sums have beside pieces: the newest time, and how many records they stand for."""


def put_together(
    rows: Rows, cut: Cut, outline: str, by: Sequence[str], columns: Sequence[Column], *, from_rows: bool
) -> Rows | None:
    """The same rows as Spark's own windows, at the same time; None where those are to be taken.

    They are with aggregates that cannot be put together from parts, and, unless it is worth it `from_rows`
    too, where the source cannot sum up.
    """
    stream = current_building("a window").summable(rows)
    if not rows.frame.isStreaming or not (from_rows or stream):
        return None
    try:
        aggregates = read_aggregates(rows.frame, by, columns)
    except Uncombinable:
        return None
    pieces = _Pieces(rows, cut, outline, tuple(by), aggregates)
    if stream is None or aggregates.sources is None:
        return pieces.result() if from_rows else None
    return pieces.result_of(stream)


class _Pieces:
    """The windows of some rows, put together from pieces of time."""

    def __init__(
        self, rows: Rows, cut: Cut, outline: str, by: tuple[str, ...], aggregates: Aggregates
    ) -> None:
        self._rows = rows
        self._cut = cut
        self._outline = outline
        self._by = by
        self._aggregates = aggregates
        self._events = self._selected()

    def result(self) -> Rows:
        """The windows of rows, which tasks put into pieces before they are shuffled."""
        first = self._cut.sums(TIME, self._by, self._aggregates.measures)
        return self._windows(self._events, first=first, first_schema=StructType(self._piece_fields()))

    def result_of(self, stream: Stream) -> Rows:
        """The windows of a stream, of which the source gives pieces: its events only tell the types."""
        building, sources = current_building("a window"), self._aggregates.sources
        assert sources is not None
        fields = [*self._piece_fields(), *(StructField(name, LongType()) for name in COUNTS)]
        sums = Sums(
            time=self._rows.event_time or "",
            keys=self._by,
            values=sources,
            measures=tuple(map(asdict, self._aggregates.measures)),
            cut=asdict(self._cut),
            behind_us=1000 * (self._rows.behind_ms - building.join_way.behind_ms),
            columns=tuple(field.name for field in fields),
        )
        schema = StructType([StructField(f"column{n}", field.dataType) for n, field in enumerate(fields)])
        return self._windows(building.sums(stream, sums, schema).drop(TIME))

    def _selected(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        frame, time = timed(self._rows)
        keys = [F.col(quoted(name)) for name in self._by]
        values = [column.alias(name) for name, column in self._aggregates.values.items()]
        return frame.select(time.alias(TIME), *keys, *values)

    def _windows(self, frame: DataFrame, **first: Any) -> Rows:
        """What the stage makes of pieces, or of the rows that are put into pieces first."""
        from pyspark.sql import functions as F  # noqa: N812

        aggregates = self._aggregates
        ends = StructType().add(START, "timestamp").add(END, "timestamp")
        schema = StructType([*ends.fields, *aggregates.fields])
        step = staged(
            frame,
            "a window",
            spread=self._by,
            keys=self._by,
            kernel=self._cut.kernel(self._by, aggregates.measures, arrow_schema(schema)),
            schema=schema,
            behind_ms=self._rows.behind_ms,
            outline=f"{self._outline}, with {self._events.drop(TIME).schema.simpleString()}",
            **first,
        )
        others = [F.col(quoted(name)) for name in step.rows.columns[2:]]
        result = step.rows.select(START, F.col(END).alias(END, metadata=end_metadata(self._rows)), *others)
        return replace(self._rows, frame=result, step=step.giving(result), event_time=END, mode="append")

    def _piece_fields(self) -> list[StructField]:
        """Keys, place, parts. Parts are of the type of their values, counts are whole."""
        events = self._events.schema
        fields = [StructField(key, events[key].dataType) for key in self._by]
        fields += [StructField(place, LongType()) for place in self._cut.places]
        for name in part_names(self._aggregates.measures):
            column, _, part = name.rpartition(".")
            is_count = not column or part == "count"
            fields.append(StructField(name, LongType() if is_count else events[column].dataType))
        return fields
