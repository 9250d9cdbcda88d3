"""The event store: commands in, versions out; and every aggregate as it is, and as it was."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import TimeoutError as TimedOut
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headrace.client.cluster import Cluster
from headrace.errors import Misuse
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.command import Command
from headrace.events.dispatch import Dispatch
from headrace.events.errors import Unanswered
from headrace.events.history import read_history, rebuild
from headrace.events.limits import Limits
from headrace.events.topics import PARTITIONS, find_topics
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from datetime import datetime
    from types import TracebackType

    from headrace.events.command import Answer
    from headrace.events.recorded import Recorded

USUAL_BROKER: Final = "127.0.0.1:9092"
TIMEOUT_S: Final = 30.0

Kind = TypeVar("Kind", bound=Aggregate)


class EventStore:
    """Aggregates, their events and their commands, under one name.

        store = EventStore("shop")
        version = store.execute(Cart, "cart-17", "add", product="tea", quantity=2)

    The broker is that of the environment or of `headrace.toml`, or 127.0.0.1:9092, unless one is named. A store
    is for any number of threads, and any number of processes may have it open. Each that executes commands also
    handles some partitions, unless `handles` is false; `close` hands them over at once, and a process that was
    killed loses them after six seconds.
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
        self._lock = threading.Lock()

    def handle(self, *kinds: type[Aggregate]) -> None:
        """Begin to handle commands of these aggregates, before the first one is executed here."""
        for kind in kinds:
            self._dispatch(kind)

    def execute(
        self,
        kind: type[Aggregate],
        id: str,  # noqa: A002  the user's word
        command: str | Callable[..., Any],
        *,
        expected_version: int | None = None,
        command_id: str | None = None,
        actor: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        timeout_s: float = TIMEOUT_S,
        **arguments: Any,
    ) -> int:
        """The version of the aggregate after a command, or `Rejected`.

        When it returns, the events of the command are stored. With `expected_version` the command is rejected
        (`VersionConflict`) unless the aggregate is at that version. A command that is repeated under its
        `command_id` gets the answer that it had, and has no second effect. `Unanswered` leaves open whether the
        command was executed.
        """
        options = (expected_version, command_id, actor, correlation, causation)
        sent, waiting = self._submit(kind, id, command, options, arguments)
        try:
            return waiting.result(timeout_s).result()
        except TimedOut:
            raise self._unanswered(kind, sent, waiting, timeout_s) from None

    async def execute_async(
        self,
        kind: type[Aggregate],
        id: str,  # noqa: A002
        command: str | Callable[..., Any],
        *,
        expected_version: int | None = None,
        command_id: str | None = None,
        actor: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        timeout_s: float = TIMEOUT_S,
        **arguments: Any,
    ) -> int:
        """The same as `execute`, to be awaited."""
        options = (expected_version, command_id, actor, correlation, causation)
        if kind not in self._dispatches:
            await asyncio.to_thread(self._dispatch, kind)
        sent, waiting = self._submit(kind, id, command, options, arguments)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(waiting), timeout_s)
        except TimeoutError:
            raise self._unanswered(kind, sent, waiting, timeout_s) from None
        return answer.result()

    def load(
        self,
        kind: type[Kind],
        id: str,
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
            found = rebuild(cluster, topics, form, id, version=version, as_of=as_of)
        assert isinstance(found, kind)
        return found

    def history(self, kind: type[Aggregate], id: str | None = None) -> Iterator[Recorded]:  # noqa: A002
        """The events of an aggregate in their order; without an id of all, partition by partition."""
        with Cluster.of(self.broker) as cluster:
            yield from read_history(cluster, find_topics(cluster, self.name, aggregate_form(kind).name), id)

    def close(self) -> None:
        """Finish what is being decided, and hand partitions over to other processes at once."""
        with self._lock:
            dispatches, self._dispatches = self._dispatches, {}
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
        id: str,  # noqa: A002
        command: str | Callable[..., Any],
        options: tuple[int | None, str | None, str | None, str | None, str | None],
        arguments: dict[str, Any],
    ) -> tuple[Command, Future[Answer]]:
        expected_version, command_id, actor, correlation, causation = options
        name = command if isinstance(command, str) else command.__name__
        letter = Command(
            aggregate_id=_checked_id(id),
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

    def _unanswered(
        self, kind: type[Aggregate], command: Command, waiting: Future[Answer], timeout_s: float
    ) -> Unanswered:
        dispatch = self._dispatches.get(kind)
        if dispatch is not None:
            dispatch.forget(command, waiting)
        return Unanswered(
            f"{kind.__name__} {command.aggregate_id!r} did not answer {command.name!r} within {timeout_s:g} s: no "
            "process handles its partition, or the broker is away. Whether it was executed is not known; executing "
            f"it again with command_id={command.command_id!r} does it once.",
            command_id=command.command_id,
        )


def _checked_name(name: str) -> str:
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or not name.isascii():
        raise Misuse(f"{name!r} is no name of a store: use letters, digits, '-', '_' and '.'.")
    return name


def _checked_id(id: str) -> str:  # noqa: A002
    if not isinstance(id, str) or not id or id[0] == "\0":
        raise Misuse(f"{id!r} is no id of an aggregate: use a text that is not empty.")
    return id
