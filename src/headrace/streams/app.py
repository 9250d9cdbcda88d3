"""An application: its streams, its topics and its jobs, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Never, TypeAlias, overload

from headrace.capture.settings import CaptureSettings
from headrace.durations import duration_text
from headrace.engine.callers import folder_of_caller, place_of_caller
from headrace.errors import HeadraceError, Misuse
from headrace.streams.clocks import CORRECTED, Clock
from headrace.streams.declarations import checked_name
from headrace.streams.job import Job
from headrace.streams.output_targets import OutputTargets
from headrace.streams.stream import MAX_AHEAD, MAX_RECORDS, Stream
from headrace.streams.table import Table
from headrace.streams.topic import Topic
from headrace.streams.view import View

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.durations import Duration
    from headrace.feeds.feed import ChangeFeed
    from headrace.sinks.sink import Sink
    from headrace.streams.declarations import TimeUnit
    from headrace.streams.job import OnError, WatermarkPolicy
    from headrace.streams.rows import Operators, OutputMode, Rows
    from headrace.streams.stream import Format

Output: TypeAlias = "Topic | Sink"
UNLIMITED: Final = "unlimited"
"""The word for a duration without a limit, beside None."""


class App:
    """What belongs together and is run together.

    >>> app = App("shop")
    >>> orders = app.stream("orders", "order_id string, amount double")
    >>> @app.job(into=app.topic("large_orders", key="order_id"))
    ... def large_orders():
    ...     return orders.df.filter("amount > 100")
    >>> [job.name for job in app.jobs]
    ['large_orders']
    """

    def __init__(self, name: str) -> None:
        self.name = checked_name(name, "application")
        self.folder = folder_of_caller()
        """The folder of the file that defines the application: its settings and its state are there."""
        self._jobs: dict[str, Job] = {}
        self._streams: list[Stream] = []
        self._tables: list[Table] = []
        self._captures: list[CaptureSettings] = []

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs, in the order of their definition."""
        return tuple(self._jobs.values())

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams, in the order of their definition."""
        return tuple(self._streams)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables, in the order of their definition."""
        return tuple(self._tables)

    @property
    def captures(self) -> tuple[CaptureSettings, ...]:
        """The databases that are captured while the application runs."""
        return tuple(self._captures)

    def capture(
        self,
        url: str,
        *,
        tables: Sequence[str] = (),
        name: str = "",
        columns: Sequence[str] = (),
        mask: Sequence[str] = (),
        hash: Sequence[str] = (),  # noqa: A002  the word of the command line
        salt: str = "",
        outbox: str = "",
        partitions: int = 1,
        warn_bytes: int = CaptureSettings.warn_bytes,
        stop_bytes: int = CaptureSettings.stop_bytes,
    ) -> CaptureSettings:
        """Have a database's tables captured while the application runs, as `headrace capture` does.

        Each table becomes a topic, `<name>.<schema>.<table>`, that `app.table` reads; the name is that of the
        database unless another is given. The other arguments are the fields of `CaptureSettings`.
        """
        settings = CaptureSettings(
            url=url,
            tables=tuple(tables),
            name=name,
            columns=tuple(columns),
            mask=tuple(mask),
            hash=tuple(hash),
            salt=salt,
            outbox=outbox,
            partitions=partitions,
            warn_bytes=warn_bytes,
            stop_bytes=stop_bytes,
        )
        if any(other.name == settings.name for other in self._captures):
            raise Misuse(
                f"the application captures two databases as {settings.name!r}: give one another name=."
            )
        self._captures.append(settings)
        return settings

    def stream(
        self,
        topic: str | View,
        schema: str | StructType | None = None,
        *,
        event_time: str | Clock | None = None,
        watermark_delay: Duration | None = None,
        idle_timeout: Duration | None = None,
        format: Format = "json",  # noqa: A002  the word that Spark's users know
        metadata: Sequence[str] = (),
        start: Literal["earliest", "latest"] = "earliest",
        max_records: int = MAX_RECORDS,
        partitions: int | None = None,
        time_unit: TimeUnit = "auto",
        max_ahead: Duration | None = MAX_AHEAD,
    ) -> Stream:
        """The records of a topic as typed rows, for use in jobs.

        `event_time` names the timestamp column that says when an event happened, and `watermark_delay` how
        long windows wait for events that are out of order. `event_time=correct_clock("occurred", "sent")`
        corrects times of devices whose clocks are wrong. The watermark of a stream that has had no records
        for `idle_timeout` advances all the same: its windows close, and joins do not wait for it. `metadata`
        adds columns such as `_key` and `_offset`, and `headers.trace` the header of that name as `_trace`.

        The topic has to exist, unless a job of the application writes it or `partitions` says with how many
        partitions to create it. A view is read back without a schema: `app.stream(revenue)`.

        Numbers that are read as timestamps count `time_unit`s since 1970: "s", "ms", "us" or "ns", or "auto",
        by which their size decides. An event time before 1970, or more than `max_ahead` after the timestamp
        of its record, is a dead letter and does not move the watermark; `max_ahead=None` takes any time.
        """
        clock = event_time if isinstance(event_time, Clock) else None
        view = topic if isinstance(topic, View) else None
        stream = Stream(
            topic=_name(topic),
            view=view,
            writer=lambda: self._writer(view),
            schema=schema if schema is None or isinstance(schema, str) else schema.json(),
            event_time=CORRECTED if isinstance(event_time, Clock) else event_time,
            watermark_delay=_text(watermark_delay),
            idle_timeout=_text(idle_timeout),
            clock=clock,
            format=format,
            metadata=tuple(metadata),
            start=start,
            max_records=max_records,
            partitions=partitions,
            declared_at=place_of_caller(),
            time_unit=time_unit,
            max_ahead=None if max_ahead == UNLIMITED else _text(max_ahead),
        )
        self._streams.append(stream)
        return stream

    @overload
    def table(
        self,
        topic: View,
        *,
        valid_from: str | None = None,
        history_retention: Duration = "1 day",
        time_unit: TimeUnit = "auto",
    ) -> Table: ...

    @overload
    def table(
        self,
        topic: str,
        schema: str | StructType,
        *,
        key: str | Sequence[str],
        valid_from: str | None = None,
        history_retention: Duration = "1 day",
        partitions: int | None = None,
        time_unit: TimeUnit = "auto",
    ) -> Table: ...

    def table(
        self,
        topic: str | View,
        schema: str | StructType | None = None,
        *,
        key: str | Sequence[str] = (),
        valid_from: str | None = None,
        history_retention: Duration = "1 day",
        partitions: int | None = None,
        time_unit: TimeUnit = "auto",
    ) -> Table:
        """The newest row of every key of a topic, to join streams with.

        `valid_from` names the timestamp column that says since when a row counts (otherwise the record's
        timestamp does), and `history_retention` how long a row that was replaced can still be
        joined. The topic has to exist, unless a job or a capture writes it or `partitions` says with how many
        partitions to create it. Numbers that are read as timestamps count `time_unit`s since 1970.

        A view is read back without a schema and a key: `app.table(revenue)`.
        """
        view = topic if isinstance(topic, View) else None
        keys = (key,) if isinstance(key, str) else tuple(key)
        table = Table(
            topic=_name(topic),
            view=view,
            writer=lambda: self._writer(view),
            schema=schema if schema is None or isinstance(schema, str) else schema.json(),
            key=keys if view is None else view.key,
            valid_from=valid_from,
            history_retention=duration_text(history_retention),
            partitions=partitions,
            time_unit=time_unit,
            declared_at=place_of_caller(),
        )
        self._tables.append(table)
        return table

    def _writer(self, view: View | None) -> Job | None:
        """The job that writes a view."""
        writers = (job for job in self.jobs if view is not None and view in job.into.views)
        return next(writers, None)

    def sql(
        self, query: str, *, output_mode: OutputMode | None = None, **rows: Operators | DataFrame
    ) -> Rows:
        """The rows of an SQL query, for use in jobs: `app.sql("SELECT … FROM orders WHERE amount > 100")`.

        Streams have the names of their topics; one with dots is written in backticks. `rows` gives names to
        others, such as the result of a join: `app.sql("SELECT * FROM paid", paid=orders.join(…))`.
        """
        from headrace.streams.sql import sql_rows

        return sql_rows(query, streams=self._streams, tables=self._tables, more=rows, output_mode=output_mode)

    def topic(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        partitions: int | None = None,
        format: Literal["json", "raw"] = "json",  # noqa: A002
        config: Mapping[str, str] | None = None,
    ) -> Topic:
        """A topic to write to, keyed by one column or several; it is made when it is not there."""
        keys = (key,) if isinstance(key, str) else tuple(key)
        return Topic(name=name, key=keys, partitions=partitions, format=format, config=dict(config or {}))

    def view(
        self,
        name: str,
        *,
        key: str | Sequence[str],
        partitions: int | None = None,
        change_retention: Duration = "1 day",
        config: Mapping[str, str] | None = None,
    ) -> View:
        """A topic whose rows replace one another by key, for a job to write into; it can be read by anybody.

        `app.changes`, `headrace changes` and `headrace query` read it. A row with a column `_deleted` that is
        true deletes its key. `change_retention` is how long every change stays, and how old a token may be.
        """
        keys = (key,) if isinstance(key, str) else tuple(key)
        return View.of(
            name, key=keys, partitions=partitions, change_retention=change_retention, config=config
        )

    def changes(
        self, view: str, *, since: str | None = None, follow: bool = True, broker: str | None = None
    ) -> ChangeFeed:
        """What a view holds, and then every change to it: for `for`, or for `async for`.

        `since` is the `token` of a change, after which the feed is to go on. Without `follow` it ends where
        the view ends now. The broker is that of the settings, or 127.0.0.1:9092, unless one is named.
        """
        from headrace.feeds.feed import ChangeFeed
        from headrace.settings import Settings

        address = Settings.read(project=self.folder).broker_or_default(broker)
        return ChangeFeed(view, str(address), since=since, follow=follow)

    def job(
        self,
        *misplaced: Never,
        into: Output | Sequence[Output],
        name: str | None = None,
        output_mode: OutputMode | None = None,
        trigger_interval: Duration | None = None,
        dead_letter_topic: str | None = None,
        max_dead_letters: int | None = None,
        max_dead_letter_ratio: float | None = None,
        late_topic: str | None = None,
        allowed_lateness: Duration | None = None,
        watermark_policy: WatermarkPolicy = "min",
        on_error: OnError = "fail",
    ) -> Callable[[Callable[[], Any]], Job]:
        """A decorator that makes a job of a function, under the function's name unless another is given.

        `into` is a topic, a view, a sink such as `postgres("revenue", key="product")`, or a list of them.
        Rows that do not parse go to the topic `dead_letter_topic`, or `<job>.dead`; more than
        `max_dead_letters` of them, or a larger share of the rows than `max_dead_letter_ratio`, stop the job.

        Rows that are late for a window are dropped and counted, or go to `late_topic`. Up to
        `allowed_lateness` after its result they correct the window instead. Where a job reads several
        streams, the slowest decides the watermark, so that none of its rows is late; with
        `watermark_policy="max"` the fastest does. `trigger_interval` is the time between micro-batches.

        A row that the job's own code fails on (an expression, a function in Python) ends the job, with an
        error that names the offsets of its batch; with `on_error="dead_letter"` the record is a dead letter
        and the job goes on. So is a result that code behind the last window or join fails on.
        """
        if misplaced:
            raise Misuse(
                f"app.job takes its arguments by name, and got {misplaced[0]!r} without one: write "
                '@app.job(into=app.topic("results")) above the function, and name="…" for another name.'
            )
        outputs = OutputTargets.of(into)

        def decorate(function: Callable[[], Any]) -> Job:
            job = Job(
                app=self.name,
                name=name or function.__name__,
                function=function,
                into=outputs,
                output_mode=output_mode,
                trigger_interval=_text(trigger_interval),
                dead_letter_topic=dead_letter_topic,
                max_dead_letters=max_dead_letters,
                max_dead_letter_ratio=max_dead_letter_ratio,
                late_topic=late_topic,
                allowed_lateness=_text(allowed_lateness),
                watermark_policy=watermark_policy,
                on_error=on_error,
            )
            if job.name in self._jobs:
                raise Misuse(f"the application {self.name!r} has two jobs named {job.name!r}: rename one.")
            self._jobs[job.name] = job
            return job

        return decorate

    def run(
        self,
        *,
        jobs: Sequence[str] = (),
        once: bool = False,
        broker: str | None = None,
        master: str | None = None,
        state: str | None = None,
    ) -> None:
        """Run the jobs until Ctrl-C, as `headrace run` does; with `once`, until what is there is processed.

        What is not given is taken from the environment or from the `headrace.toml` next to the file that
        defines the application. The process ends with a code other than 0 when a job failed.
        """
        from headrace.streams.command import run_app

        try:
            code = run_app(self, jobs=jobs, once=once, broker=broker, master=master, state=state)
        except HeadraceError as error:
            raise SystemExit(f"error: {error}") from None
        if code:
            raise SystemExit(code)


def _name(topic: str | View) -> str:
    return topic.name if isinstance(topic, View) else topic


def _text(duration: Duration | None) -> str | None:
    return None if duration is None else duration_text(duration)
