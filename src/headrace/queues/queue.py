"""`queue(…)`: a topic's messages, each in one worker's hands at a time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.queues.message import Verdict
from headrace.queues.receiver import Receiver
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from headrace.queues.message import Message

DEFAULT_BROKER: Final = "127.0.0.1:9092"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What to take messages from, and how; each loop over it is a worker of its own."""

    topics: tuple[str, ...]
    group: str
    broker: str
    start: Literal["earliest", "latest"] = "earliest"
    prefetch: int = 1
    idle_s: float | None = None
    patience_s: float = 60.0
    settings: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Message]:
        receiver = Receiver(self, self.broker)
        message: Message | None = None
        try:
            since = time.monotonic()
            while not self._is_idle(since):
                message = receiver.take()
                if message is not None:
                    yield message
                    receiver.finish(message, _verdict(message))
                    message, since = None, time.monotonic()
        finally:
            _leave(receiver, message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        # One thread: the connection is used by one caller at a time, and the loop never waits for it.
        with ThreadPoolExecutor(1, thread_name_prefix="queue") as thread:
            receiver = await loop.run_in_executor(thread, Receiver, self, self.broker)
            message: Message | None = None
            try:
                since = time.monotonic()
                while not self._is_idle(since):
                    if receiver.is_ready:
                        message = receiver.take()
                    else:
                        message = await loop.run_in_executor(thread, receiver.take)
                    if message is not None:
                        yield message
                        receiver.finish(message, _verdict(message))
                        message, since = None, time.monotonic()
            finally:
                await asyncio.shield(loop.run_in_executor(thread, _leave, receiver, message))

    def _is_idle(self, since: float) -> bool:
        return self.idle_s is not None and time.monotonic() - since >= self.idle_s


def queue(
    *topics: str,
    group: str,
    broker: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    prefetch: int = 1,
    idle_s: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> Queue:
    """The messages of `topics` for the workers of `group`, with `for` or with `async for`.

    A message is accepted when the body of the loop ends, and released when the body raises or breaks, unless
    the body itself said `message.accept()`, `release()` or `reject()`. Released, it is delivered again, to
    any worker; after the group's limit (5), or rejected, it goes to the topic `<topic>.<group>.dead`.

    | argument | meaning |
    |---|---|
    | `broker` | its address; otherwise that of the environment, of `headrace.toml`, or of this machine |
    | `start` | where a new group begins: `"earliest"`, with what is there, or `"latest"` |
    | `prefetch` | how many messages a worker takes at once; more is faster, and keeps them from others |
    | `idle_s` | end the loop when no message came for so long; otherwise it never ends |
    | `settings` | of the group, under Kafka's names: `{"share.record.lock.duration.ms": "60000"}` |

    Delivery is at least once: a worker that dies after its work and before its word is heard leaves the
    message to another.
    """
    if not topics or not group:
        raise Misuse('a queue has a topic and a group: queue("orders", group="mailer")')
    if prefetch < 1:
        raise Misuse(f"prefetch is {prefetch}: a worker takes one message at least")
    said = Settings.read().broker(broker)
    return Queue(
        topics=topics,
        group=group,
        broker=DEFAULT_BROKER if said is None else str(said),
        start=start,
        prefetch=prefetch,
        idle_s=idle_s,
        settings=dict(settings or {}),
    )


def _verdict(message: Message) -> Verdict:
    return Verdict.ACCEPT if message.verdict is None else message.verdict


def _leave(receiver: Receiver, message: Message | None) -> None:
    """Close; a message in hand means that the body did not end, and what it said of it counts."""
    try:
        if message is not None:
            receiver.finish(message, Verdict.RELEASE if message.verdict is None else message.verdict)
    finally:
        receiver.close()
