"""`queue(…)`: the messages of topics, each delivered to one worker at a time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headrace.durations import seconds_of
from headrace.errors import Misuse
from headrace.protocol.share import AcknowledgeType
from headrace.queues.consumer import ShareConsumer
from headrace.queues.message import ON_ERROR
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from headrace.durations import Duration
    from headrace.queues.message import Message, OnError


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Topics, group and options of a queue; each loop over it is one worker."""

    topics: tuple[str, ...]
    group: str
    broker: str
    start: Literal["earliest", "latest"] = "earliest"
    prefetch: int = 1
    idle_timeout_s: float | None = None
    on_error: OnError = "raise"
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    patience_s: float = 60.0
    settings: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Message]:
        consumer = ShareConsumer(self, self.broker)
        message: Message | None = None
        try:
            idle_since = time.monotonic()
            while not self._is_idle(idle_since):
                message = consumer.poll()
                if message is not None:
                    consumer.begin(message)
                    yield message
                    consumer.acknowledge(message, message.acknowledgment or AcknowledgeType.ACCEPT)
                    message, idle_since = None, time.monotonic()
            consumer.check_topics()
        finally:
            _leave(consumer, message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        loop = asyncio.get_running_loop()
        # One thread: the consumer is not thread-safe, and the event loop must not block.
        with ThreadPoolExecutor(1, thread_name_prefix="queue") as thread:
            consumer = await loop.run_in_executor(thread, ShareConsumer, self, self.broker)
            message: Message | None = None
            try:
                idle_since = time.monotonic()
                while not self._is_idle(idle_since):
                    if consumer.is_ready:
                        message = consumer.poll()
                    else:
                        message = await loop.run_in_executor(thread, consumer.poll)
                    if message is not None:
                        consumer.begin(message)
                        yield message
                        consumer.acknowledge(message, message.acknowledgment or AcknowledgeType.ACCEPT)
                        message, idle_since = None, time.monotonic()
                consumer.check_topics()
            finally:
                await asyncio.shield(loop.run_in_executor(thread, _leave, consumer, message))

    def delay_s(self, deliveries: int) -> float:
        """The backoff of a message that was delivered this often."""
        doublings = min(deliveries - 1, 40)  # avoids an overflow
        return min(self.backoff_s * 2.0**doublings, self.max_backoff_s)

    def _is_idle(self, idle_since: float) -> bool:
        return self.idle_timeout_s is not None and time.monotonic() - idle_since >= self.idle_timeout_s


def queue(
    *topics: str,
    group: str,
    broker: str | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    prefetch: int = 1,
    idle_timeout: Duration | None = None,
    on_error: OnError = "raise",
    backoff: Duration = "1 second",
    max_backoff: Duration = "5 minutes",
    settings: Mapping[str, str] | None = None,
) -> Queue:
    """The messages of `topics` for the workers of `group`, with `for` or `async for`.

    A message is accepted when the body of the loop ends, and released when the body raises or breaks, unless
    the body called `message.accept()`, `release()` or `reject()`. A released message is delivered again, to
    any worker. At the group's delivery limit (5), or if it is rejected, it goes to `<topic>.<group>.dead`.

    Python ends a loop whose body raises. `with message:` around the work handles the exception instead, as
    `on_error` says, and the loop continues:

        for message in queue("orders", group="mailer", on_error="release"):
            with message:
                send_mail(message.json())

    | argument | meaning |
    |---|---|
    | `broker` | its address; default: the environment, `headrace.toml`, or this machine |
    | `start` | where a new group starts: `"earliest"` or `"latest"` |
    | `prefetch` | messages that a worker acquires at once; more is faster, but locks them for other workers |
    | `idle_timeout` | end the loop after this time (`"10 seconds"`) without a message; default: never |
    | `on_error` | what `with message:` does after an exception: `"raise"`, `"release"` or `"reject"` |
    | `backoff` | the delay after the first release; doubled with each delivery, up to `max_backoff` |
    | `settings` | settings of the group with Kafka's names: `{"share.record.lock.duration.ms": "60000"}` |

    Delivery is at least once: if a worker crashes after its work and before its acknowledgment, the message
    is delivered again.
    """
    if not topics or not group:
        raise Misuse('a queue needs a topic and a group: queue("orders", group="mailer")')
    if prefetch < 1:
        raise Misuse(f"prefetch is {prefetch}: the minimum is 1")
    if on_error not in ON_ERROR:
        raise Misuse(f"on_error is {on_error!r}: use one of {', '.join(ON_ERROR)}")
    backoff_s, max_backoff_s = seconds_of(backoff, "backoff"), seconds_of(max_backoff, "max_backoff")
    if backoff_s > max_backoff_s:
        raise Misuse(f"backoff is {backoff!r}: it must not be longer than max_backoff, {max_backoff!r}")
    return Queue(
        topics=topics,
        group=group,
        broker=str(Settings.read().broker_or_default(broker)),
        start=start,
        prefetch=prefetch,
        idle_timeout_s=None if idle_timeout is None else seconds_of(idle_timeout, "idle_timeout"),
        on_error=on_error,
        backoff_s=backoff_s,
        max_backoff_s=max_backoff_s,
        settings=dict(settings or {}),
    )


def _leave(consumer: ShareConsumer, message: Message | None) -> None:
    """Close the consumer; a message whose body did not end is released unless the body acknowledged it."""
    try:
        if message is not None:
            if message.acknowledgment is None and message.deliveries == 1:
                # A `break`, or the first exception: another worker may get it at once.
                message.release(delay="0s")
            consumer.acknowledge(message, message.acknowledgment or AcknowledgeType.RELEASE)
    finally:
        consumer.close()
