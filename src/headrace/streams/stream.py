"""A topic as a stream of typed rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.declarations import TimeUnit, checked_name, read_schema
from headrace.streams.rows import Operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.streams.clocks import Clock
    from headrace.streams.job import Job
    from headrace.streams.rows import Rows
    from headrace.streams.view import View

Format = Literal["json", "csv", "text", "raw"]

METADATA: Final = ("key", "topic", "partition", "offset", "timestamp", "headers")
"""What a record carries beside its value; as columns of a stream they begin with an underscore."""
HEADER: Final = "headers."
"""Before the name of one header, which is a column as text: `headers.ce_type` as `_ce_type`."""
STRUCTURED: Final = ("json", "csv")
"""Formats whose values have fields."""
MAX_RECORDS: Final = 1_000_000
MAX_AHEAD: Final = "1 day"
RECORD_TIME: Final = "_timestamp"
"""The column with the time at which a record was written."""
MIN_IDLE_MS: Final = 1_000
"""A stream that is timed by its records is not idle before: each time that it is, there is a batch."""
_HEADER: Final = re.compile(r"headers\.[^`,\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Operators):
    """Rows of one topic, parsed by a schema.

    `df` is a plain streaming DataFrame of Spark's, and is there while a job's function runs. A value that
    does not parse is not among its rows: it goes to the job's dead letters. Nor is a record without a value.
    """

    topic: str
    schema: str | None
    """The fields of the value, as DDL or as the JSON of a StructType; nothing for text and raw."""
    event_time: str | None = None
    watermark_delay: str | None = None
    format: Format = "json"
    metadata: tuple[str, ...] = ()
    """Which of `METADATA`, and which headers, become columns: `key` as `_key`, and so on."""
    start: Literal["earliest", "latest"] = "earliest"
    """Where a job without a checkpoint begins."""
    max_records: int = MAX_RECORDS
    """The most that one micro-batch reads: a backlog is worked off in pieces of this size."""
    idle_timeout: str | None = None
    """How long a stream may have nothing before its time goes on without it."""
    clock: Clock | None = None
    """How the event time is made of the times of a device whose clock may be wrong."""
    partitions: int | None = None
    """With how many partitions the topic is created if it does not exist; without it, it has to exist."""
    view: View | None = None
    """The view that the stream reads, if its columns are those of the view."""
    writer: Callable[[], Job | None] = field(default=lambda: None, compare=False, repr=False)
    """The job of the application that writes the view, if there is one."""
    declared_at: str = field(default="", compare=False, repr=False)
    """The line of the user's code that declares it."""
    time_unit: TimeUnit = "auto"
    """What numbers count that are read as timestamps; `auto` goes by their size."""
    max_ahead: str | None = MAX_AHEAD
    """How far an event time may be ahead of the time of its record; None: any time is taken."""

    def __post_init__(self) -> None:
        checked_name(self.topic, "topic")
        for problem in self._problems():
            raise Misuse(f"the stream of {self.topic!r}: {problem}")

    def _problems(self) -> list[str]:
        """What is wrong with the definition, each as the rest of a sentence."""
        problems = self._format_problems()
        if (self.event_time is None) != (self.watermark_delay is None):
            problems.append(
                "event_time and watermark_delay belong together: the column that says when an event "
                'happened, and how long to wait for late ones, such as watermark_delay="2 minutes".'
            )
        if self.idle_timeout is not None and self.event_time is None:
            problems.append("idle_timeout is about event time: declare event_time and watermark_delay too.")
        if self.time_unit not in get_args(TimeUnit):
            problems.append(
                f"time_unit {self.time_unit!r} is not known: use {', '.join(get_args(TimeUnit))}."
            )
        if self.event_time is None and self.max_ahead != MAX_AHEAD:
            problems.append("max_ahead is about event time: declare event_time and watermark_delay too.")
        durations = {
            "watermark_delay": self.watermark_delay,
            "idle_timeout": self.idle_timeout,
            "max_ahead": self.max_ahead,
        }
        for name, text in durations.items():
            if text is not None:
                milliseconds_of(text, f"the stream of {self.topic!r}: {name}")
        problems += [
            f"{name!r} is not metadata: choose from {', '.join(METADATA)}, or one header: headers.NAME."
            for name in self.metadata
            if name not in METADATA and not _HEADER.fullmatch(name)
        ]
        if self.start not in ("earliest", "latest"):
            problems.append(f"start is earliest or latest, not {self.start!r}.")
        if self.max_records < 1:
            problems.append("max_records is at least 1.")
        if self.partitions is not None and self.partitions < 1:
            problems.append("partitions is at least 1.")
        return problems

    def _format_problems(self) -> list[str]:
        problems = []
        if self.format not in (*STRUCTURED, "text", "raw"):
            problems.append(f"format {self.format!r} is not known: use json, csv, text or raw.")
        if self.view is not None and (self.format != "json" or self.schema is not None):
            problems.append("a view has its own schema, and its rows are JSON: leave schema and format out.")
        if (self.format in STRUCTURED) != (self.schema is not None or self.view is not None):
            problems.append(
                "json and csv need a schema; text and raw have one column, `value`, and need none."
            )
        return problems

    @property
    def idles_after_ms(self) -> int | None:
        """After how long without records its time goes on: always, where it is the time of the records.

        That time passes whether records come or not, so their windows close when the input stops.
        """
        if self.idle_timeout is not None:
            return milliseconds_of(self.idle_timeout, "idle_timeout")
        if self.event_time != RECORD_TIME or self.clock is not None:
            return None
        return max(milliseconds_of(self.watermark_delay or "0 ms", "watermark_delay"), MIN_IDLE_MS)

    @property
    def headers(self) -> tuple[str, ...]:
        """The headers that are columns of their own."""
        return tuple(name.removeprefix(HEADER) for name in self.metadata if name.startswith(HEADER))

    @property
    def asked(self) -> tuple[str, ...]:
        """The columns of the source that are metadata here."""
        return tuple(name.removeprefix(HEADER) for name in self.metadata)

    @property
    def time_column(self) -> str | None:
        """The metadata that is the event time, by the source's name of it; None where it is a field."""
        times = {f"_{name}": name for name in self.asked}
        return None if self.clock is not None else times.get(self.event_time or "")

    @property
    def guarded_field(self) -> str | None:
        """The field of the values whose times must be plausible.

        Of corrected times it is the time of receipt, if that is a field: the correction compares the others
        with it. The time of the record itself is bounded by the broker.
        """
        if self.clock is not None:
            return self.clock.received
        return None if self.time_column is not None else self.event_time

    @property
    def rows(self) -> Rows:
        """The rows, with the columns of the schema and of the metadata asked for."""
        from headrace.engine.logical import current_plan
        from headrace.streams.source import source_rows

        current_plan(f"the rows of {self.topic!r}")
        if self.view is not None:
            from headrace.streams.view import view_schema

            return replace(self, schema=view_schema(self.view, self.writer()), view=None).rows
        if self.schema is not None:
            read_schema(self.schema, f"the stream of {self.topic!r}", self.declared_at)
        return source_rows(self)
