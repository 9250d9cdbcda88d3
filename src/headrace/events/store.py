"""The event store: commands in, versions out; and every aggregate as it is, and as it was."""

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
from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.command import Command
from headrace.events.differences import steps
from headrace.events.dispatch import Dispatch
from headrace.events.history import read_events, read_history, rebuild
from headrace.events.limits import Limits
from headrace.events.log import ends
from headrace.events.progress import progress_bar
from headrace.events.projection_run import Running, rebuild_projection, wait
from headrace.events.submitted import Submitted, called_like, remaining_s
from headrace.events.topics import PARTITIONS, find_topics, open_topics
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from headrace.events.differences import Step
    from headrace.events.event import Event
    from headrace.events.projection import Projection
    from headrace.events.recorded import Recorded

USUAL_BROKER: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 30.0
_USAGE: Final = 'store.execute(Cart, "cart-17", "add", product="tea").'

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
        self._is_closed = False
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
        correlation: str | None = None,
        causation: str | None = None,
        wait_for: Projection | None = None,
        timeout_s: float = TIMEOUT_S,
        **arguments: Any,
    ) -> Submitted:
        deadline = time.monotonic() + timeout_s
        form = aggregate_form(kind)
        name = command if isinstance(command, str) else command.__name__
        letter = Command(
            aggregate_id=_checked_id(key),
            name=name,
            arguments=form.command(name).write(arguments),
            command_id=command_id or uuid.uuid4().hex,
            expected_version=expected_version,
            actor=actor,
            correlation=correlation,
            causation=causation,
        )
        dispatch = self._dispatch(kind, timeout_s)
        return Submitted(
            command=letter,
            answer=dispatch.submit(letter, remaining_s(deadline)),
            dispatch=dispatch,
            aggregate=form.name,
            wait_for=wait_for,
            timeout_s=timeout_s,
            deadline=deadline,
        )

    @called_like(_submit)
    def execute(self, *call: Any, **options: Any) -> int:
        """The version of the aggregate after a command, or `Rejected`.

        When it returns, the events of the command are stored. With `expected_version` the command is rejected
        (`VersionConflict`) unless the aggregate is at that version. A command that is repeated under its
        `command_id` gets the answer that it had, and has no second effect. `Unanswered` leaves open whether
        the command was executed, `BrokerUnreachable` says that it was not sent. With `wait_for` it returns
        when that projection shows the events. Nothing takes longer than `timeout_s`.
        """
        submitted = self._submit(*_checked_call(call), **options)
        try:
            version = submitted.answer.result(submitted.remaining_s).result()
        except TimedOut:
            raise submitted.give_up() from None
        self._wait(submitted)
        return version

    @called_like(_submit)
    async def execute_async(self, *call: Any, **options: Any) -> int:
        """The same as `execute`, to be awaited."""
        kind, key, _ = checked = _checked_call(call)
        dispatch = self._dispatches.get(kind)
        if dispatch is not None and dispatch.submits_at_once(key):
            submitted = self._submit(*checked, **options)
        else:
            submitted = await asyncio.to_thread(self._submit, *checked, **options)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(submitted.answer), submitted.remaining_s)
        except TimeoutError:
            raise submitted.give_up() from None
        version = answer.result()
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
        form = aggregate_form(kind)
        with Cluster.of(self.broker) as cluster:
            topics = find_topics(cluster, self.name, form.name)
            yield from steps(form, key, read_events(cluster, topics, key))

    def project(self, *projections: Projection) -> None:
        """Keep these projections, in threads of this process, until the store is closed."""
        for projection in projections:
            with self._lock:
                self._check_open()
                if projection.place.name not in self._running:
                    self._open_topics(projection)
                    self._running[projection.place.name] = Running(self.broker, self.name, projection)

    def rebuild(self, projection: Projection, progress: Callable[[int, int], None] | None = None) -> int:
        """Build a projection anew beside the one that is there, and switch; how many events it took.

        Readers see the old tables until the moment of the switch, and a process that keeps the projection
        goes on with the new ones. `progress` is told how much of how much is done; otherwise a bar shows it
        on a terminal.
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
        """The events so far as a frame of Spark; of one kind of event with its fields as columns.

        With `columns` the frame has only those, which makes it faster: Spark does not tell what a query uses.
        """
        from headrace.events.frames import event_frame

        return event_frame(spark or _spark(), self.broker, self.name, kind, event, columns, streaming=False)

    def stream(
        self,
        kind: type[Aggregate],
        event: type[Event] | None = None,
        *,
        columns: Sequence[str] | None = None,
        spark: SparkSession | None = None,
    ) -> DataFrame:
        """The same as a stream: the events so far, and those to come."""
        from headrace.events.frames import event_frame

        return event_frame(spark or _spark(), self.broker, self.name, kind, event, columns, streaming=True)

    def close(self) -> None:
        """Finish what is being decided, and hand partitions over to other processes at once.

        A closed store executes nothing and keeps no projections; what is in the log can still be read.
        """
        atexit.unregister(self._at_exit)
        with self._lock:
            self._is_closed = True
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

    def _dispatch(self, kind: type[Aggregate], timeout_s: float = TIMEOUT_S) -> Dispatch:
        found = self._dispatches.get(kind)
        if found is not None:
            return found
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise BrokerUnreachable(f"the broker at {self.broker} did not answer within {timeout_s:g} s")
        try:
            self._check_open()
            if kind not in self._dispatches:
                self._dispatches[kind] = Dispatch(
                    self.broker,
                    self.name,
                    aggregate_form(kind),
                    self._limits,
                    partitions=self._partitions,
                    handles=self._handles,
                    timeout_s=remaining_s(deadline),
                )
            return self._dispatches[kind]
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Misuse(f"the event store {self.name!r} is closed: open it again with EventStore(…).")

    def _open_topics(self, projection: Projection) -> None:
        with Cluster.of(self.broker) as cluster:
            for name in projection.forms:
                open_topics(cluster, self.name, name, self._partitions)

    def _wait(self, submitted: Submitted) -> None:
        """Return when the projection that was asked for shows what was stored."""
        projection, topics = submitted.wait_for, submitted.dispatch.topics
        if projection is None:
            return
        place = TopicPartition(topics.events, topics.partition_of(submitted.command.aggregate_id))
        with Cluster.of(self.broker, timeout_s=submitted.remaining_s) as cluster:
            end = ends(cluster, [place])[place]
        wait(projection, place, end, submitted.remaining_s, self._running.get(projection.place.name))


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
        raise Misuse(f"{name!r} is no name of a store: use letters, digits, '-', '_' and '.'.")
    return name


def _checked_call(call: tuple[Any, ...]) -> tuple[type[Aggregate], str, str | Callable[..., Any]]:
    """Class, id and command, or `Misuse` that says how the command is called."""
    kind = call[0] if call else None
    if not (isinstance(kind, type) and issubclass(kind, Aggregate)):
        raise Misuse(f"{kind!r} is not a class of aggregates: {_USAGE}")
    if len(call) < 3 or not (isinstance(call[2], str) or callable(call[2])):
        known = ", ".join(sorted(aggregate_form(kind).commands))
        raise Misuse(f"name a command of {kind.__name__} ({known}): {_USAGE}")
    if len(call) > 3:
        name = call[2] if isinstance(call[2], str) else call[2].__name__
        command = aggregate_form(kind).command(name)
        raise Misuse(f"{command}: give its parameters by name, as in {_USAGE}")
    return kind, call[1], call[2]


def _checked_id(key: object) -> str:
    if not isinstance(key, str) or not key or key[0] == "\0":
        raise Misuse(f"{key!r} is no id of an aggregate: use a text that is not empty.")
    return key
