"""`queue(…)`: a topic's messages, each in one worker's hands at a time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import Misuse
from headrace.queues.message import ON_ERROR, Verdict
from headrace.queues.receiver import Receiver
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from headrace.queues.message import Message, OnError

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
    on_error: OnError = "raise"
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
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
                    receiver.finish(message, message.verdict or Verdict.ACCEPT)
                    message, since = None, time.monotonic()
            receiver.check_topics()
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
                        receiver.finish(message, message.verdict or Verdict.ACCEPT)
                        message, since = None, time.monotonic()
                receiver.check_topics()
            finally:
                await asyncio.shield(loop.run_in_executor(thread, _leave, receiver, message))

    def backoff(self, deliveries: int) -> float:
        """Seconds until a message that was released is delivered again."""
        doublings = min(deliveries - 1, 40)  # more would be a number without an end
        return min(self.backoff_s * 2.0**doublings, self.max_backoff_s)

    def _is_idle(self, since: float) -> bool:
        return self.idle_s is not None and time.monotonic() - since >= self.idle_s


def queue(
    *topics: str,
    group: str,
    broker: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    prefetch: int = 1,
    idle_s: float | None = None,
    on_error: OnError = "raise",
    backoff_s: float = 1.0,
    max_backoff_s: float = 300.0,
    settings: Mapping[str, str] | None = None,
) -> Queue:
    """The messages of `topics` for the workers of `group`, with `for` or with `async for`.

    A message is accepted when the body of the loop ends, and released when the body raises or breaks, unless
    the body itself said `message.accept()`, `release()` or `reject()`. Released, it is delivered again, to
    any worker; after the group's limit (5), or rejected, it goes to the topic `<topic>.<group>.dead`.

    Python ends a loop whose body raises. `with message:` around the work handles the exception instead, as
    `on_error` says, and the loop goes on:

        for message in queue("orders", group="mailer", on_error="release"):
            with message:
                send_mail(message.json())

    | argument | meaning |
    |---|---|
    | `broker` | its address; otherwise that of the environment, of `headrace.toml`, or of this machine |
    | `start` | where a new group begins: `"earliest"`, with what is there, or `"latest"` |
    | `prefetch` | how many messages a worker takes at once; more is faster, and keeps them from others |
    | `idle_s` | end the loop when no message came for so long; otherwise it never ends |
    | `on_error` | what `with message:` does after an exception: `"raise"` it, or `"release"` or `"reject"` |
    | `backoff_s` | the delay after the first release; doubled with each delivery, up to `max_backoff_s` |
    | `settings` | of the group, under Kafka's names: `{"share.record.lock.duration.ms": "60000"}` |

    Delivery is at least once: a worker that dies after its work and before its word is heard leaves the
    message to another.
    """
    if not topics or not group:
        raise Misuse('a queue has a topic and a group: queue("orders", group="mailer")')
    if prefetch < 1:
        raise Misuse(f"prefetch is {prefetch}: a worker takes one message at least")
    if on_error not in ON_ERROR:
        raise Misuse(f"on_error is {on_error!r}: use one of {', '.join(ON_ERROR)}")
    if not 0 <= backoff_s <= max_backoff_s:
        raise Misuse(f"backoff_s is {backoff_s}: use a number from 0 to max_backoff_s, {max_backoff_s}")
    said = Settings.read().broker(broker)
    return Queue(
        topics=topics,
        group=group,
        broker=DEFAULT_BROKER if said is None else str(said),
        start=start,
        prefetch=prefetch,
        idle_s=idle_s,
        on_error=on_error,
        backoff_s=backoff_s,
        max_backoff_s=max_backoff_s,
        settings=dict(settings or {}),
    )


def _leave(receiver: Receiver, message: Message | None) -> None:
    """Close; a message in hand means that the body did not end, and what it said of it counts."""
    try:
        if message is not None:
            if message.verdict is None and message.deliveries == 1:
                # A `break`, or a body that raised for the first time: another worker may have it at once.
                message.release(delay=0)
            receiver.finish(message, message.verdict or Verdict.RELEASE)
    finally:
        receiver.close()
