"""The event store: executes commands, and reads aggregates as they are and as they were."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
import uuid
import weakref
from concurrent.futures import TimeoutError as TimedOut
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable
from headrace.client.partition import TopicPartition
from headrace.durations import seconds_of
from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_schema
from headrace.events.commands import Command
from headrace.events.dispatcher import CommandDispatcher, SubmittedCommand, remaining_s, with_signature_of
from headrace.events.history import history_steps, read_events, read_history, rebuild
from headrace.events.partition_processor import Limits
from headrace.events.projection_runner import (
    RunningProjection,
    progress_bar,
    rebuild_projection,
    wait_for_projection,
)
from headrace.events.topics import PARTITIONS, end_offsets, find_topics, open_topics
from headrace.settings import Settings
from headrace.tracing import open_tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from datetime import datetime
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from headrace.durations import Duration
    from headrace.events.commands import CommandReply
    from headrace.events.event import Event, RecordedEvent
    from headrace.events.history import HistoryStep
    from headrace.events.projection import Projection
    from headrace.metrics.address import MetricsAddress
    from headrace.metrics.server import MetricsServer
    from headrace.tracing import Span

TIMEOUT: Final = "30 seconds"
TIMEOUT_S: Final = seconds_of(TIMEOUT)
_USAGE: Final = 'store.execute(Cart, "cart-17", "add", product="tea").'

Kind = TypeVar("Kind", bound=Aggregate)


class EventStore:
    """The commands, events and aggregates of one store.

        store = EventStore("shop")
        version = store.execute(Cart, "cart-17", "add", product="tea", quantity=2)

    Without `broker`, the broker is that of the environment or of `headrace.toml`, or 127.0.0.1:9092. Any
    number of threads and processes may use a store. Each process that executes commands also handles some
    partitions, unless `handles` is false. After `close` other processes take them over at once; a killed
    process loses them after six seconds. With `metrics`, an address or a port, the process serves the metrics
    and the health of its handlers there.
    """

    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        partitions: int = PARTITIONS,
        limits: Limits | None = None,
        handles: bool = True,
        metrics: str | None = None,
    ) -> None:
        self.name = _checked_name(name)
        settings = Settings.read()
        self.broker = str(settings.broker_or_default(broker))
        self._partitions = partitions
        self._limits = limits or Limits()
        self._handles = handles
        self._dispatchers: dict[type[Aggregate], CommandDispatcher] = {}
        self._running: dict[str, RunningProjection] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._tracer = open_tracer(f"headrace-events-{self.name}", settings.tracing())
        self._metrics = self._serve_metrics(settings.metrics("events", metrics)) if handles else None
        # Without `close` the partitions would have no handler for six seconds.
        self._at_exit = partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)

    def handle(self, *kinds: type[Aggregate]) -> None:
        """Start to handle commands of these classes of aggregates, before the first one is executed here."""
        for kind in kinds:
            self._dispatcher(kind)

    def handled_partitions(self, kind: type[Aggregate]) -> set[int]:
        """The partitions of a class of aggregates that this process handles."""
        return self._dispatcher(kind).handled_partitions()

    def _submit(
        self,
        kind: type[Aggregate],
        key: str,
        command: str | Callable[..., Any],
        /,
        *,
        expected_version: int | None = None,
        command_id: str | None = None,
        actor: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        wait_for: Projection | None = None,
        timeout: Duration = TIMEOUT,
        **arguments: Any,
    ) -> SubmittedCommand:
        timeout_s = seconds_of(timeout, "timeout")
        deadline = time.monotonic() + timeout_s
        schema = aggregate_schema(kind)
        name = command if isinstance(command, str) else command.__name__
        span = self._start_span(schema.name, name, key)
        submitted = Command(
            aggregate_id=_checked_id(key),
            name=name,
            arguments=schema.command(name).write(arguments),
            command_id=command_id or uuid.uuid4().hex,
            expected_version=expected_version,
            actor=actor,
            correlation_id=correlation_id,
            causation_id=causation_id,
            traceparent=None if span is None else span.traceparent,
        )
        dispatcher = self._dispatcher(kind, timeout_s)
        reply = dispatcher.submit(submitted, remaining_s(deadline))
        if span is not None:
            reply.add_done_callback(partial(_end_span, span))
        return SubmittedCommand(
            command=submitted,
            reply=reply,
            dispatcher=dispatcher,
            aggregate=schema.name,
            wait_for=wait_for,
            timeout_s=timeout_s,
            deadline=deadline,
        )

    def _start_span(self, aggregate: str, command: str, key: str) -> Span | None:
        if self._tracer is None:
            return None
        attributes = {"headrace.store": self.name, "headrace.aggregate.id": str(key)}
        return self._tracer.start(f"{aggregate}.{command}", "producer", attributes=attributes)

    @with_signature_of(_submit)
    def execute(self, *call: Any, **options: Any) -> int:
        """Execute a command; returns the version of the aggregate after it, or raises `Rejected`.

        When it returns, the events of the command are stored. With `expected_version` the command is rejected
        (`VersionConflict`) unless the aggregate has that version. A command that is repeated with the same
        `command_id` gets the same reply, and has no second effect. After `CommandTimeout` it is not known
        whether the command was executed; after `BrokerUnreachable` it was not sent. With `wait_for` it
        returns when that projection shows the events. It takes at most `timeout`.
        """
        submitted = self._submit(*_checked_call(call), **options)
        try:
            version = submitted.reply.result(submitted.remaining_s).result()
        except TimedOut:
            raise submitted.time_out() from None
        self._wait(submitted)
        return version

    @with_signature_of(_submit)
    async def execute_async(self, *call: Any, **options: Any) -> int:
        """Like `execute`, as a coroutine."""
        kind, key, _ = checked = _checked_call(call)
        dispatcher = self._dispatchers.get(kind)
        if dispatcher is not None and dispatcher.submits_at_once(key):
            submitted = self._submit(*checked, **options)
        else:
            submitted = await asyncio.to_thread(self._submit, *checked, **options)
        try:
            reply = await asyncio.wait_for(asyncio.wrap_future(submitted.reply), submitted.remaining_s)
        except TimeoutError:
            raise submitted.time_out() from None
        version = reply.result()
        if submitted.wait_for is not None:
            await asyncio.to_thread(self._wait, submitted)
        return version

    def load(
        self,
        kind: type[Kind],
        key: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
    ) -> Kind:
        """The aggregate as it is now, at a version, or as of a time.

        An aggregate without events has version 0, and the state after `__init__`.
        """
        schema = aggregate_schema(kind)
        with Cluster.of(self.broker) as cluster:
            topics = find_topics(cluster, self.name, schema.name)
            found = rebuild(cluster, topics, schema, key, version=version, as_of=as_of)
        assert isinstance(found, kind)
        return found

    def history(self, kind: type[Aggregate], key: str | None = None) -> Iterator[RecordedEvent]:
        """The events of an aggregate in order; without an id, of all aggregates, partition by partition."""
        with Cluster.of(self.broker) as cluster:
            yield from read_history(
                cluster, find_topics(cluster, self.name, aggregate_schema(kind).name), key
            )

    def steps(self, kind: type[Aggregate], key: str) -> Iterator[HistoryStep]:
        """Each event of an aggregate in order, and the changes that it made to the state."""
        schema = aggregate_schema(kind)
        with Cluster.of(self.broker) as cluster:
            topics = find_topics(cluster, self.name, schema.name)
            yield from history_steps(schema, key, read_events(cluster, topics, key))

    def project(self, *projections: Projection) -> None:
        """Keep these projections up to date, in threads of this process, until the store is closed."""
        for projection in projections:
            with self._lock:
                self._check_open()
                if projection.target.name not in self._running:
                    self._open_topics(projection)
                    self._running[projection.target.name] = RunningProjection(
                        self.broker, self.name, projection
                    )

    def rebuild(self, projection: Projection, progress: Callable[[int, int], None] | None = None) -> int:
        """Rebuild a projection in new tables, and switch to them; returns the number of events.

        Readers see the old tables until the switch, and a process that keeps the projection up to date
        continues with the new ones. `progress` is called with (done, total); without it a terminal shows a
        progress bar.
        """
        with progress_bar(type(projection).__name__) as bar:
            return rebuild_projection(self.broker, self.name, projection, progress or bar)

    def df(
        self,
        kind: type[Aggregate],
        event: type[Event] | None = None,
        *,
        columns: Sequence[str] | None = None,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """The events so far as a Spark DataFrame; with `event`, that class alone with its fields as columns.

        Name the `columns` that a query uses where speed matters: Spark does not pass them to the source.
        """
        from headrace.events.dataframes import event_dataframe

        return event_dataframe(
            spark or _spark(), self.broker, self.name, kind, event, columns, streaming=False
        )

    def stream(
        self,
        kind: type[Aggregate],
        event: type[Event] | None = None,
        *,
        columns: Sequence[str] | None = None,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """Like `df`, as a streaming DataFrame: the events so far, and those to come."""
        from headrace.events.dataframes import event_dataframe

        return event_dataframe(
            spark or _spark(), self.broker, self.name, kind, event, columns, streaming=True
        )

    def close(self) -> None:
        """Finish the commands in progress, and release the partitions to other processes at once.

        A closed store executes no commands and updates no projections; the log can still be read.
        """
        atexit.unregister(self._at_exit)
        with self._lock:
            self._is_closed = True
            dispatchers, self._dispatchers = self._dispatchers, {}
            running, self._running = self._running, {}
        for each in running.values():
            each.close()
        for dispatcher in dispatchers.values():
            dispatcher.close()
        if self._tracer is not None:
            self._tracer.flush()
        if self._metrics is not None:
            self._metrics.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _dispatcher(self, kind: type[Aggregate], timeout_s: float = TIMEOUT_S) -> CommandDispatcher:
        found = self._dispatchers.get(kind)
        if found is not None:
            return found
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise BrokerUnreachable(f"the broker at {self.broker} did not respond within {timeout_s:g} s")
        try:
            self._check_open()
            if kind not in self._dispatchers:
                self._dispatchers[kind] = CommandDispatcher(
                    self.broker,
                    self.name,
                    aggregate_schema(kind),
                    self._limits,
                    partitions=self._partitions,
                    handles=self._handles,
                    timeout_s=remaining_s(deadline),
                )
            return self._dispatchers[kind]
        finally:
            self._lock.release()

    @property
    def metrics_address(self) -> MetricsAddress | None:
        """Where the metrics of the handlers are served, with the port that was free; None if nowhere."""
        return None if self._metrics is None else self._metrics.address

    def _serve_metrics(self, address: MetricsAddress | None) -> MetricsServer | None:
        if address is None:
            return None
        from headrace.events.handlers import EventMetricsSource
        from headrace.metrics.server import MetricsServer

        source = EventMetricsSource(self.name, lambda: list(self._dispatchers.values()))
        return MetricsServer(address, source)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Misuse(f"the event store {self.name!r} is closed: open a new EventStore.")

    def _open_topics(self, projection: Projection) -> None:
        with Cluster.of(self.broker) as cluster:
            for name in projection.schemas:
                open_topics(cluster, self.name, name, self._partitions)

    def _wait(self, submitted: SubmittedCommand) -> None:
        """Return once the projection in `wait_for` shows the events of the command."""
        projection, topics = submitted.wait_for, submitted.dispatcher.topics
        if projection is None:
            return
        partition = TopicPartition(topics.events, topics.partition_of(submitted.command.aggregate_id))
        with Cluster.of(self.broker, timeout_s=submitted.remaining_s) as cluster:
            end = end_offsets(cluster, [partition])[partition]
        running = self._running.get(projection.target.name)
        wait_for_projection(projection, partition, end, submitted.remaining_s, running)


def _end_span(span: Span, reply: Future[CommandReply]) -> None:
    if reply.cancelled():
        span.end("cancelled")
    elif (error := reply.exception()) is not None:
        span.end(error)
    else:
        outcome = reply.result()
        span.set(headrace_outcome=outcome.kind, headrace_version=outcome.version)
        span.end(outcome.reason or outcome.kind if outcome.kind in ("failed", "unreadable") else None)


def _close(store: weakref.ref[EventStore]) -> None:
    opened = store()
    if opened is not None:
        opened.close()


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    from headrace.spark.session import local_session

    return SparkSession.getActiveSession() or local_session("events")


def _checked_name(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or not name.isascii():
        raise Misuse(f"{name!r} is not a valid store name: use letters, digits, '-', '_' and '.'.")
    return name


def _checked_call(call: tuple[Any, ...]) -> tuple[type[Aggregate], str, str | Callable[..., Any]]:
    """Class, id and command, or `Misuse` that shows how to call the command."""
    kind = call[0] if call else None
    if not (isinstance(kind, type) and issubclass(kind, Aggregate)):
        raise Misuse(f"{kind!r} is not an aggregate class: {_USAGE}")
    if len(call) < 3 or not (isinstance(call[2], str) or callable(call[2])):
        known = ", ".join(sorted(aggregate_schema(kind).commands))
        raise Misuse(f"name a command of {kind.__name__} ({known}): {_USAGE}")
    if len(call) > 3:
        name = call[2] if isinstance(call[2], str) else call[2].__name__
        command = aggregate_schema(kind).command(name)
        raise Misuse(f"{command}: pass its parameters by name, as in {_USAGE}")
    return kind, call[1], call[2]


def _checked_id(key: object) -> str:
    if not isinstance(key, str) or not key or key[0] == "\0":
        raise Misuse(f"{key!r} is not a valid aggregate id: use a non-empty string.")
    return key
