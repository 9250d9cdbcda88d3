"""The path of a command to the handler of its aggregate, in this process or in another, and of its reply.

execute ──▶ handler of the partition, if it is in this process ───────────────────────▶ reply
   └──────▶ topic of commands ──▶ handler in another process ──▶ topic of replies ──▶ reply
"""

from __future__ import annotations

import inspect
import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from confluent_kafka import Producer

from headrace.client.bootstrap import SILENT, client_config
from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, OffsetOutOfRange
from headrace.client.fetch import committed_records, fetch_batches, skip_unreadable
from headrace.errors import HeadraceError
from headrace.events.commands import CommandReply, set_error, set_reply
from headrace.events.errors import CommandTimeout
from headrace.events.handlers import (
    CONCURRENT_WRITES,
    HandlerContext,
    HandlerMetrics,
    PartitionAssignment,
    QueuedCommand,
)
from headrace.events.partition_processor import CommandEnvelope
from headrace.events.topics import end_offsets, open_topics, topic_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from confluent_kafka import KafkaError, Message

    from headrace.client.fetch import FetchedBatches
    from headrace.client.partition import TopicPartition
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.commands import Command
    from headrace.events.handlers import PartitionHandler
    from headrace.events.partition_processor import Limits
    from headrace.events.projection import Projection
    from headrace.events.topics import StoreTopics

FLUSH_S: Final = 5.0
RESEND_S: Final = 30.0
"""How long a handler that ends waits for the broker when it sends unanswered commands to the topic."""
FETCH_WAIT_MS: Final = 100
FETCH_TIMEOUT_S: Final = 2.0
RETRY_PAUSE_S: Final = 0.1
IDLE_S: Final = 0.5
"""How long the topic of replies is still read when no caller waits."""

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


class CommandNotSent(HeadraceError):
    """A command that the broker did not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedCommand:
    """A command on its way, the future of its reply, and the deadline of its caller."""

    command: Command
    reply: Future[CommandReply]
    dispatcher: CommandDispatcher
    aggregate: str
    wait_for: Projection | None
    timeout_s: float
    deadline: float
    """On the clock of `time.monotonic`."""

    @property
    def remaining_s(self) -> float:
        """The time up to the deadline."""
        return remaining_s(self.deadline)

    def time_out(self) -> CommandTimeout:
        """The error of a command without a reply in time; a later reply is ignored."""
        command = self.command
        self.dispatcher.forget(command, self.reply)
        return CommandTimeout(
            f"{self.aggregate} {command.aggregate_id!r} did not reply to {command.name!r} within "
            f"{self.timeout_s:g} s: no process handles its partition, or the broker is unreachable. It is "
            f"unknown whether the command was executed. Repeat it with command_id={command.command_id!r}: it "
            "is executed at most once.",
            command_id=command.command_id,
        )


def remaining_s(deadline: float) -> float:
    """The time up to a deadline of `time.monotonic`; never 0, which sockets take for "do not wait"."""
    return max(deadline - time.monotonic(), 0.01)


def with_signature_of(model: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the parameters of `model`, for `help`, editors and type checkers."""

    def sign(function: Callable[..., R]) -> Callable[P, R]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(model).replace(return_annotation=returned)
        cast("Any", function).__signature__ = signature
        return cast("Callable[P, R]", function)

    return sign


class ReplyReader:
    """Reads the topic of replies for callers of this process whose commands another process handles.

    The topic is read only while a caller waits, and a moment longer. A process that handles its own commands
    would otherwise read all its replies again, which costs as much as the commands.
    """

    def __init__(self, broker: str, topics: StoreTopics) -> None:
        self._broker = broker
        self._topics = topics
        self._futures: dict[tuple[str, str], list[Future[CommandReply]]] = {}
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        """Held during the request for the end offset; `_lock` is not, because handlers acquire it."""
        self._is_reading = False
        self._starts: queue.SimpleQueue[Mapping[TopicPartition, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_reading(self) -> bool:
        """Whether `expect` returns at once."""
        return self._is_reading

    def expect(self, key: tuple[str, str], future: Future[CommandReply], timeout_s: float) -> None:
        """Let `future` get the reply to the command with that key, which is not sent yet."""
        if self._register(key, future):
            return
        deadline = time.monotonic() + timeout_s
        if not self._starting.acquire(timeout=timeout_s):
            raise BrokerUnreachable(f"the broker at {self._broker} did not respond within {timeout_s:g} s")
        try:
            while not self._register(key, future):  # reading may stop before the future is registered
                self._start(remaining_s(deadline))
        finally:
            self._starting.release()

    def forget(self, key: tuple[str, str], future: Future[CommandReply]) -> None:
        """Ignore the reply: its caller no longer waits."""
        with self._lock:
            rest = [each for each in self._futures.pop(key, []) if each is not future]
            if rest:
                self._futures[key] = rest

    def deliver(self, reply: CommandReply) -> None:
        """Give a reply to the callers that wait for it."""
        if not self._futures:
            return
        with self._lock:
            found = self._futures.pop(reply.key, [])
        for future in found:
            set_reply(future, reply)

    def close(self) -> None:
        """Stop reading."""
        self._starts.put(None)
        if self._thread is not None:
            self._thread.join()

    def _register(self, key: tuple[str, str], future: Future[CommandReply]) -> bool:
        """Whether the topic is being read, so that `future` will get its reply."""
        with self._lock:
            if self._is_reading:
                self._futures.setdefault(key, []).append(future)
            return self._is_reading

    def _start(self, timeout_s: float) -> None:
        """Read from the current end of the topic: the command is sent later, so its reply follows."""
        with Cluster.of(self._broker, timeout_s=timeout_s) as cluster:
            starts = end_offsets(cluster, topic_partitions(self._topics.replies, self._topics.partitions))
        self._is_reading = True
        self._starts.put(starts)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._topics.replies, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with Cluster.of(self._broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S) as cluster:
            while (starts := self._starts.get()) is not None:
                self._read(cluster, dict(starts))

    def _read(self, cluster: Cluster, positions: dict[TopicPartition, int]) -> None:
        """Deliver replies until no caller has waited for a while, or the reader is closed."""
        idle_at = time.monotonic() + IDLE_S
        while self._starts.empty() and not self._is_idle(idle_at):
            if self._futures:
                idle_at = time.monotonic() + IDLE_S
            try:
                for fetched in fetch_batches(cluster, positions, max_wait_ms=FETCH_WAIT_MS):
                    self._deliver_all(fetched)
                    positions[fetched.partition] = fetched.next_offset
            except OffsetOutOfRange as gone:
                positions[gone.partition] = gone.first
            except HeadraceError as error:  # the broker is unreachable: it is tried again
                logger.info("%s: %s", self._topics.replies, error)
                time.sleep(RETRY_PAUSE_S)

    def _deliver_all(self, fetched: FetchedBatches) -> None:
        for record in skip_unreadable(committed_records(*fetched[:3])):
            try:
                reply, _ = CommandReply.read(record.value or b"")
            except ValueError as error:
                message = "skipped offset %d of %s, which is no reply: %s"
                logger.warning(message, record.offset, fetched.partition, error)
            else:
                self.deliver(reply)

    def _is_idle(self, idle_at: float) -> bool:
        with self._lock:
            self._is_reading = bool(self._futures) or time.monotonic() < idle_at
            return not self._is_reading


class CommandDispatcher:
    """Passes the commands of one class of aggregates to their handlers; for any number of threads."""

    def __init__(
        self,
        broker: str,
        store: str,
        schema: AggregateSchema,
        limits: Limits,
        *,
        partitions: int,
        handles: bool,
        timeout_s: float,
    ) -> None:
        with Cluster.of(broker, timeout_s=timeout_s) as cluster:
            self.topics = open_topics(cluster, store, schema.name, partitions)
        self.metrics = HandlerMetrics()
        self._replies = ReplyReader(broker, self.topics)
        self._producer = Producer(
            client_config(
                broker,
                {
                    "client.id": "headrace-events",
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "logger": SILENT,
                },
            )
        )
        context = HandlerContext(
            broker,
            self.topics,
            schema,
            limits,
            send=partial(self._send, timeout_s=RESEND_S),
            on_reply=self._replies.deliver,
            write_slots=threading.Semaphore(CONCURRENT_WRITES),
            metrics=self.metrics,
            on_open=_ignore,
        )
        self._assignment = PartitionAssignment(context) if handles else None

    def submit(self, command: Command, timeout_s: float) -> Future[CommandReply]:
        """The future reply to a command; `timeout_s` bounds the requests to the broker before it is sent."""
        future: Future[CommandReply] = Future()
        handler = self._handler(command.aggregate_id)
        if handler is not None and handler.error is not None:
            raise handler.error
        if handler is None or not handler.offer(
            QueuedCommand(CommandEnvelope(command), future, time.perf_counter())
        ):
            self._send(command, future, timeout_s=timeout_s)
        return future

    def submits_at_once(self, aggregate_id: str) -> bool:
        """Whether `submit` does not wait for the broker."""
        handler = self._handler(aggregate_id)
        return self._replies.is_reading or (handler is not None and handler.is_open)

    def handled_partitions(self) -> set[int]:
        """The partitions that this process handles."""
        return set() if self._assignment is None else self._assignment.handled_partitions()

    def errors(self) -> list[str]:
        """Why partitions of this process handle no commands."""
        return [] if self._assignment is None else self._assignment.errors()

    def forget(self, command: Command, future: Future[CommandReply]) -> None:
        """Ignore the reply: its caller no longer waits."""
        self._replies.forget(command.key, future)

    def close(self) -> None:
        """Finish the current step of each handler, and let other processes take over."""
        if self._assignment is not None:
            self._assignment.close()
        self._producer.flush(FLUSH_S)
        self._replies.close()

    def _handler(self, aggregate_id: str) -> PartitionHandler | None:
        if self._assignment is None:
            return None
        return self._assignment.handler(self.topics.partition_of(aggregate_id))

    def _send(self, command: Command, future: Future[CommandReply], *, timeout_s: float) -> None:
        self._replies.expect(command.key, future, timeout_s)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                set_error(future, CommandNotSent(f"the broker did not accept the command: {error.str()}"))

        try:
            self._producer.produce(
                self.topics.commands,
                key=command.aggregate_id.encode(),
                value=command.write(),
                partition=self.topics.partition_of(command.aggregate_id),
                on_delivery=delivered,
            )
        except BufferError:
            self._producer.poll(0)
            raise CommandNotSent("too many commands wait for the broker: try again later") from None
        self._producer.poll(0)


def _ignore(*_: object) -> None:
    """Do nothing: `PartitionAssignment` sets its own function."""
