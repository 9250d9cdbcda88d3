"""The way of a command to the handler of its aggregate, in this process or in another, and back.

execute ──▶ handler of the partition, when it is in this process ─────────────────────▶ answer
   └──────▶ topic of commands ──▶ handler, wherever it is ──▶ topic of answers ──▶ answer
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import Producer

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.events.command import fail
from headrace.events.desk import Letter
from headrace.events.handler import WRITES, Duty, Post
from headrace.events.ownership import Ownership
from headrace.events.replies import Replies
from headrace.events.topics import open_topics

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

    from headrace.events.aggregate import AggregateForm
    from headrace.events.command import Answer, Command
    from headrace.events.handler import Handler
    from headrace.events.limits import Limits

FLUSH_S: Final = 5.0
RESEND_S: Final = 30.0
"""How long a handler that ends waits for the broker to send on what it did not answer."""
_SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)


class NotSent(HeadraceError):
    """A command that the broker did not take."""


class Dispatch:
    """Takes the commands of one class of aggregates to their handlers; for any number of threads."""

    def __init__(
        self,
        broker: str,
        store: str,
        form: AggregateForm,
        limits: Limits,
        *,
        partitions: int,
        handles: bool,
        timeout_s: float,
    ) -> None:
        with Cluster.of(broker, timeout_s=timeout_s) as cluster:
            self.topics = open_topics(cluster, store, form.name, partitions)
        self._replies = Replies(broker, self.topics)
        self._producer = Producer(
            {
                "bootstrap.servers": broker,
                "client.id": "headrace-events",
                "enable.idempotence": True,
                "linger.ms": 0,
                "logger": _SILENT,
            }
        )
        duty = Duty(
            broker,
            self.topics,
            form,
            limits,
            send=partial(self._send, timeout_s=RESEND_S),
            answered=self._replies.answered,
            turns=threading.Semaphore(WRITES),
            opened=_ignore,
        )
        self._ownership = Ownership(duty) if handles else None

    def submit(self, command: Command, timeout_s: float) -> Future[Answer]:
        """The answer to a command, once it is there; `timeout_s` is for a broker that must be asked first."""
        waiting: Future[Answer] = Future()
        handler = self._handler(command.aggregate_id)
        if handler is not None and handler.fault is not None:
            raise handler.fault
        if handler is None or not handler.offer(Post(Letter(command), waiting)):
            self._send(command, waiting, timeout_s=timeout_s)
        return waiting

    def submits_at_once(self, aggregate_id: str) -> bool:
        """Whether `submit` has no need to wait for the broker."""
        handler = self._handler(aggregate_id)
        return self._replies.is_reading or (handler is not None and handler.is_open)

    def _handler(self, aggregate_id: str) -> Handler | None:
        if self._ownership is None:
            return None
        return self._ownership.handler(self.topics.partition_of(aggregate_id))

    def handled(self) -> set[int]:
        """The partitions that this process handles now."""
        return set() if self._ownership is None else self._ownership.handled()

    def forget(self, command: Command, waiting: Future[Answer]) -> None:
        """Nobody waits for this answer any more."""
        self._replies.forget(command.key, waiting)

    def close(self) -> None:
        """Finish what is being decided, and let others take over."""
        if self._ownership is not None:
            self._ownership.close()
        self._producer.flush(FLUSH_S)
        self._replies.close()

    def _send(self, command: Command, waiting: Future[Answer], *, timeout_s: float) -> None:
        self._replies.expect(command.key, waiting, timeout_s)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                fail(waiting, NotSent(f"the broker did not take the command: {error.str()}"))

        self._producer.produce(
            self.topics.commands,
            key=command.aggregate_id.encode(),
            value=command.write(),
            partition=self.topics.partition_of(command.aggregate_id),
            on_delivery=delivered,
        )
        self._producer.poll(0)


def _ignore(*_: object) -> None:
    """Nothing is to be done before there is an owner."""
