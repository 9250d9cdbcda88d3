"""The event store: commands in, versions out; and every aggregate as it is, and as it was."""

from __future__ import annotations

import asyncio
import atexit
import threading
import uuid
import weakref
from concurrent.futures import TimeoutError as TimedOut
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.command import Command
from headrace.events.differences import steps
from headrace.events.dispatch import Dispatch
from headrace.events.errors import Unanswered
from headrace.events.history import read_history, rebuild
from headrace.events.limits import Limits
from headrace.events.log import ends
from headrace.events.progress import progress_bar
from headrace.events.projection_run import Running, rebuild_projection, wait
from headrace.events.topics import PARTITIONS, find_topics, open_topics
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from datetime import datetime
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from headrace.events.command import Answer
    from headrace.events.differences import Step
    from headrace.events.event import Event
    from headrace.events.projection import Projection
    from headrace.events.recorded import Recorded

USUAL_BROKER: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 30.0

Kind = TypeVar("Kind", bound=Aggregate)


class EventStore:
    """Aggregates, their events and their commands, under one name.

        store = EventStore("shop")
        version = store.execute(Cart, "cart-17", "add", product="tea", quantity=2)

    The broker is that of the environment or of `headrace.toml`, or 127.0.0.1:9092, unless one is named. A
    store is for any number of threads, and any number of processes may have it open. Each that executes
    commands also handles some partitions, unless `handles` is false; `close` hands them over at once, and a
    process that was killed loses them after six seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        broker: str | None = None,
        partitions: int = PARTITIONS,
        limits: Limits | None = None,
        handles: bool = True,
    ) -> None:
        self.name = _checked_name(name)
        address = Settings.read().broker(broker)
        self.broker = USUAL_BROKER if address is None else str(address)
        self._partitions = partitions
        self._limits = limits or Limits()
        self._handles = handles
        self._dispatches: dict[type[Aggregate], Dispatch] = {}
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        # A program that ends without `close` would leave its partitions without a handler for six seconds.
        self._at_exit = partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)

    def handle(self, *kinds: type[Aggregate]) -> None:
        """Begin to handle commands of these aggregates, before the first one is executed here."""
        for kind in kinds:
            self._dispatch(kind)

    def handled(self, kind: type[Aggregate]) -> set[int]:
        """The partitions of these aggregates whose commands this process decides now."""
        return self._dispatch(kind).handled()

    def execute(
        self,
        kind: type[Aggregate],
        key: str,
        command: str | Callable[..., Any],
        /,
        *,
        expected_version: int | None = None,
        command_id: str | None = None,
        actor: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        wait_for: Projection | None = None,
        timeout_s: float = TIMEOUT_S,
        **arguments: Any,
    ) -> int:
        """The version of the aggregate after a command, or `Rejected`.

        When it returns, the events of the command are stored. With `expected_version` the command is rejected
        (`VersionConflict`) unless the aggregate is at that version. A command that is repeated under its
        `command_id` gets the answer that it had, and has no second effect. `Unanswered` leaves open whether
        the command was executed. With `wait_for` it returns when that projection shows the events.
        """
        options = (expected_version, command_id, actor, correlation, causation)
        sent, waiting = self._submit(kind, key, command, options, arguments)
        try:
            version = waiting.result(timeout_s).result()
        except TimedOut:
            raise self._unanswered(kind, sent, waiting, timeout_s) from None
        if wait_for is not None:
            self._wait(wait_for, kind, key, timeout_s)
        return version

    async def execute_async(
        self,
        kind: type[Aggregate],
        key: str,
        command: str | Callable[..., Any],
        /,
        *,
        expected_version: int | None = None,
        command_id: str | None = None,
        actor: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        wait_for: Projection | None = None,
        timeout_s: float = TIMEOUT_S,
        **arguments: Any,
    ) -> int:
        """The same as `execute`, to be awaited."""
        options = (expected_version, command_id, actor, correlation, causation)
        if kind not in self._dispatches:
            await asyncio.to_thread(self._dispatch, kind)
        sent, waiting = self._submit(kind, key, command, options, arguments)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(waiting), timeout_s)
        except TimeoutError:
            raise self._unanswered(kind, sent, waiting, timeout_s) from None
        version = answer.result()
        if wait_for is not None:
            await asyncio.to_thread(self._wait, wait_for, kind, key, timeout_s)
        return version

    def load(
        self,
        kind: type[Kind],
        key: str,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
    ) -> Kind:
        """The aggregate as its events made it: now, at a version, or as of a time.

        One that has no events is as its `__init__` makes it, of version 0.
        """
        form = aggregate_form(kind)
        with Cluster.of(self.broker) as cluster:
            topics = find_topics(cluster, self.name, form.name)
            found = rebuild(cluster, topics, form, key, version=version, as_of=as_of)
        assert isinstance(found, kind)
        return found

    def history(self, kind: type[Aggregate], key: str | None = None) -> Iterator[Recorded]:
        """The events of an aggregate in their order; without an id of all, partition by partition."""
        with Cluster.of(self.broker) as cluster:
            yield from read_history(cluster, find_topics(cluster, self.name, aggregate_form(kind).name), key)

    def steps(self, kind: type[Aggregate], key: str) -> Iterator[Step]:
        """Each event of an aggregate in its order, and what it changed in the state."""
        return steps(aggregate_form(kind), key, self.history(kind, key))

    def project(self, *projections: Projection) -> None:
        """Keep these projections, in threads of this process, until the store is closed."""
        for projection in projections:
            with self._lock:
                if _identity(projection) not in self._running:
                    self._open_topics(projection)
                    self._running[_identity(projection)] = Running(self.broker, self.name, projection)

    def rebuild(self, projection: Projection, progress: Callable[[int, int], None] | None = None) -> int:
        """Build a projection anew beside the one that is there, and switch; how many events it took.

        Readers see the old tables until the moment of the switch, and a process that keeps the projection
        goes on with the new ones. `progress` is told how much of how much is done; otherwise a bar shows it
        on a terminal.
        """
        with progress_bar(type(projection).__name__) as bar:
            return rebuild_projection(self.broker, self.name, projection, progress or bar)

    def df(
        self, kind: type[Aggregate], event: type[Event] | None = None, *, spark: SparkSession | None = None
    ) -> DataFrame:
        """The events so far as a frame of Spark; of one kind of event with its fields as columns."""
        from headrace.events.frames import event_frame

        return event_frame(spark or _spark(), self.broker, self.name, kind, event, streaming=False)

    def stream(
        self, kind: type[Aggregate], event: type[Event] | None = None, *, spark: SparkSession | None = None
    ) -> DataFrame:
        """The same as a stream: the events so far, and those to come."""
        from headrace.events.frames import event_frame

        return event_frame(spark or _spark(), self.broker, self.name, kind, event, streaming=True)

    def close(self) -> None:
        """Finish what is being decided, and hand partitions over to other processes at once."""
        atexit.unregister(self._at_exit)
        with self._lock:
            dispatches, self._dispatches = self._dispatches, {}
            running, self._running = self._running, {}
        for each in running.values():
            each.close()
        for dispatch in dispatches.values():
            dispatch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _submit(
        self,
        kind: type[Aggregate],
        key: str,
        command: str | Callable[..., Any],
        options: tuple[int | None, str | None, str | None, str | None, str | None],
        arguments: dict[str, Any],
    ) -> tuple[Command, Future[Answer]]:
        expected_version, command_id, actor, correlation, causation = options
        name = command if isinstance(command, str) else command.__name__
        letter = Command(
            aggregate_id=_checked_id(key),
            name=name,
            arguments=aggregate_form(kind).command(name).write(arguments),
            command_id=command_id or uuid.uuid4().hex,
            expected_version=expected_version,
            actor=actor,
            correlation=correlation,
            causation=causation,
        )
        return letter, self._dispatch(kind).submit(letter)

    def _dispatch(self, kind: type[Aggregate]) -> Dispatch:
        found = self._dispatches.get(kind)
        if found is not None:
            return found
        with self._lock:
            if kind not in self._dispatches:
                self._dispatches[kind] = Dispatch(
                    self.broker,
                    self.name,
                    aggregate_form(kind),
                    self._limits,
                    partitions=self._partitions,
                    handles=self._handles,
                )
            return self._dispatches[kind]

    def _open_topics(self, projection: Projection) -> None:
        with Cluster.of(self.broker) as cluster:
            for name in projection.forms:
                open_topics(cluster, self.name, name, self._partitions)

    def _wait(self, projection: Projection, kind: type[Aggregate], key: str, timeout_s: float) -> None:
        topics = self._dispatch(kind).topics
        place = TopicPartition(topics.events, topics.partition_of(key))
        with Cluster.of(self.broker) as cluster:
            end = ends(cluster, [place])[place]
        wait(projection, place, end, timeout_s, self._running.get(_identity(projection)))

    def _unanswered(
        self, kind: type[Aggregate], command: Command, waiting: Future[Answer], timeout_s: float
    ) -> Unanswered:
        dispatch = self._dispatches.get(kind)
        if dispatch is not None:
            dispatch.forget(command, waiting)
        return Unanswered(
            f"{kind.__name__} {command.aggregate_id!r} did not answer {command.name!r} within "
            f"{timeout_s:g} s: no process handles its partition, or the broker is away. Whether it was "
            f"executed is not known; executing it again with command_id={command.command_id!r} does it once.",
            command_id=command.command_id,
        )


def _close(store: weakref.ref[EventStore]) -> None:
    opened = store()
    if opened is not None:
        opened.close()


def _identity(projection: Projection) -> str:
    return str(Path(projection.path).absolute())


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    from headrace.spark.session import local_session

    return SparkSession.getActiveSession() or local_session("events")


def _checked_name(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or not name.isascii():
        raise Misuse(f"{name!r} is no name of a store: use letters, digits, '-', '_' and '.'.")
    return name


def _checked_id(key: object) -> str:
    if not isinstance(key, str) or not key or key[0] == "\0":
        raise Misuse(f"{key!r} is no id of an aggregate: use a text that is not empty.")
    return key
