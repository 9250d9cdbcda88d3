"""Rows inside a job, and what can be done with them, one step after the other.

`Stream` and `Rows` share the operators. Each of them gives new rows, and `df` is a plain streaming DataFrame
at every step, so whatever Spark can do stays one attribute away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from headrace.engine.logical import name_next
from headrace.errors import Misuse, did_you_mean
from headrace.streams.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.durations import Duration
    from headrace.engine.columns import On
    from headrace.streams.stream_join import How as StreamHow
    from headrace.streams.stream_join import Within
    from headrace.streams.table_join import AsOf
    from headrace.streams.table_join import How as TableHow
    from headrace.streams.window_operator import Windowed
    from headrace.streams.windows import Window

OutputMode = Literal["append", "update", "complete"]


class Operators:
    """What can be done with rows.

    `name=` of an operator names its state. Without it, it is called by its kind and the number of operators
    of that kind that the job's function has called so far: `window-1`.
    """

    __slots__ = ()

    @property
    def rows(self) -> Rows:
        """The rows as they are, without another step."""
        raise NotImplementedError

    @property
    def df(self) -> DataFrame:
        """The rows as a streaming DataFrame; it is there while a job's function runs."""
        return self.rows.frame

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Rows:
        """What a function makes of the DataFrame; the column of the event time has to stay."""
        rows = self.rows
        made = function(rows.frame)
        if rows.event_time is not None and rows.event_time not in made.columns:
            raise Misuse(
                f"the function given to transform() left out {rows.event_time!r}, the column that says when "
                "an event happened: keep it among the columns."
            )
        return replace(rows, frame=made)

    def window(self, window: Window, by: str | Sequence[str] = ()) -> Windowed:
        """The rows by window of event time, and by the columns `by`; `.agg(…)` follows."""
        from headrace.streams.window_operator import window_rows

        return window_rows(self.rows, window, by)

    @overload
    def join(
        self, other: Operators, on: On, *, within: Within, how: StreamHow = "inner", name: str | None = None
    ) -> Rows: ...

    @overload
    def join(
        self,
        other: Table,
        on: On,
        *,
        as_of: AsOf = "event",
        how: TableHow = "left",
        delay: Duration | None = None,
        name: str | None = None,
    ) -> Rows: ...

    def join(self, other: Operators | Table, on: On, *, name: str | None = None, **options: Any) -> Rows:
        """Each row with the rows of `other` that belong to it, by the columns `on`.

        `other` is a stream or rows (`within=`, `how=`: see `stream_join`), or a table (`as_of=`, `delay=`,
        `how=`: see `table_join`).
        """
        if isinstance(other, Table):
            from headrace.streams.table_join import join_table

            _check_options(options, ("as_of", "how", "delay"), "a stream with a table")
            name_next(name)
            return join_table(self.rows, other, on, **options)
        from headrace.streams.stream_join import join_streams

        _check_options(options, ("within", "how"), "two streams")
        if "within" not in options:
            raise Misuse(
                "a join of two streams needs within=: how far apart the times of two rows may be, such as "
                'within="5 minutes".'
            )
        name_next(name)
        return join_streams(self.rows, other.rows, on, **options)

    def deduplicate(self, *columns: str, within: Duration, name: str | None = None) -> Rows:
        """The first row of each value of `columns`; one that comes again within that time is left out."""
        from headrace.streams.deduplication import deduplicate

        name_next(name)
        return deduplicate(self.rows, columns, within=within)

    def top(self, count: int, *, order: str | Sequence[str], by: str | Sequence[str] = ()) -> Rows:
        """The first `count` results of each window, and of each value of `by` in it, with their `rank`."""
        from headrace.streams.top import top_rows

        return top_rows(self.rows, count, order=order, by=by)

    def map_arrow(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table],
        schema: str | StructType,
    ) -> Rows:
        """What a function makes of each `pyarrow.RecordBatch` of the rows; `schema` names its columns."""
        from headrace.streams.functions import map_arrow

        return map_arrow(self.rows, function, schema)


def _check_options(options: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    unknown = [name for name in options if name not in known]
    if unknown:
        raise Misuse(
            f"a join of {what} has no argument {unknown[0]!r}.{did_you_mean(unknown[0], known)} It takes "
            f"{', '.join(f'{name}=' for name in known)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Operators):
    """Rows of a job's logical plan, and what is known about their time and about how they are written."""

    frame: DataFrame
    """Over the placeholders of logical nodes."""
    event_time: str | None = None
    """The column that says when an event happened."""
    watermark_delay: str | None = None
    """How long jobs wait for events that come late."""
    mode: OutputMode | None = None
    """How a job has to write these rows; otherwise it appends them."""
    topic: str | None = None
    """The topic that the rows are from, as long as they are from one: joins name columns by it."""
    key: tuple[str, ...] = ()
    """The columns by which rows replace one another, where they do: those of a view over tables."""
    windowed: DataFrame | None = None
    """The results of windows, all those of a window in one batch, before the steps that have followed."""
    behind_ms: int = 0
    """How far rows may be behind the watermark without being late: a join holds them back."""
    untimed_by: str | None = None
    """The step that took the event time away, where one did."""

    @property
    def rows(self) -> Rows:
        """These."""
        return self
