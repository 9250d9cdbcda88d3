"""Load on NATS JetStream by nats-py, on uvloop: publishes with many records in flight, pulls in batches.

`JetStreamContext.publish_async` creates a future, a random token and a parsed response for each record, and
is much slower than this: one reply subject for all, whose responses are counted and checked for errors.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StorageType
from nats.js.errors import NotFoundError

from bench.broker.load.job import Job, Outcome, Window
from bench.broker.load.latencies import DRAIN_SECONDS, Arrivals, pace, stamped
from bench.broker.load.librdkafka import LoadFailed

WINDOW = 4_000
BATCH = 1_000
UNACKNOWLEDGED = ConsumerConfig(ack_policy=AckPolicy.NONE)


def produce(job: Job) -> Outcome:
    """Publish with thousands of records in flight."""
    return uvloop.run(_produce(job, in_flight=WINDOW))


def requests(job: Job) -> Outcome:
    """Publish with as many records in flight as the job allows."""
    return uvloop.run(_produce(job, in_flight=job.in_flight))


def consume(job: Job) -> Outcome:
    """Pull from the start of the stream, without acknowledgments."""
    return uvloop.run(_consume(job))


def latency(job: Job) -> Outcome:
    """Publish at a constant rate to a push consumer."""
    return uvloop.run(_latency(job))


async def _produce(job: Job, *, in_flight: int) -> Outcome:
    async with _stream_of(job) as (client, _):
        publisher = await Publisher.open(client, job.topic)
        payload = random.randbytes(job.record_bytes)
        await publisher.publish(payload)
        await publisher.wait_for(unanswered=0)
        with Window(job) as window:
            while window.is_open:
                await publisher.publish(payload)
                await publisher.wait_for(unanswered=in_flight - 1)
            await publisher.wait_for(unanswered=0)
        return window.outcome(publisher.answered - 1)


async def _consume(job: Job) -> Outcome:
    async with _stream_of(job) as (_, jetstream):
        subscription = await jetstream.pull_subscribe(job.topic, config=UNACKNOWLEDGED)
        records = 0
        with Window(job) as window:
            while records < job.records and window.is_open:
                records += len(await subscription.fetch(BATCH, timeout=5))
        return window.outcome(records)


async def _latency(job: Job) -> Outcome:
    async with _stream_of(job) as (client, jetstream):
        publisher, arrivals = await Publisher.open(client, job.topic), Arrivals(job)

        async def take(message: Msg) -> None:
            arrivals.add(message.data)

        await jetstream.subscribe(job.topic, cb=take, config=UNACKNOWLEDGED)
        with Window(job) as window:
            await _publish_paced(job, publisher)
            await _wait_for(arrivals.complete.is_set, DRAIN_SECONDS)
        return window.outcome(int(job.seconds * job.rate), latencies_ms=arrivals.summary())


async def _publish_paced(job: Job, publisher: "Publisher") -> None:
    loop = asyncio.get_running_loop()
    offset = None
    for due in pace(job):
        offset = loop.time() - due if offset is None else offset
        await asyncio.sleep(due + offset - loop.time())
        await publisher.publish(stamped(job.record_bytes))
    await publisher.wait_for(unanswered=0)


class Publisher:
    """Publishes to one subject, and counts the responses of JetStream."""

    def __init__(self, client: Client, subject: str) -> None:
        self._client = client
        self._subject = subject
        self._reply = client.new_inbox()
        self._sent = 0
        self.answered = 0
        self._answer = asyncio.Event()

    @classmethod
    async def open(cls, client: Client, subject: str) -> "Publisher":
        """A publisher that is subscribed to its responses."""
        publisher = cls(client, subject)
        await client.subscribe(publisher._reply, cb=publisher._count)
        return publisher

    async def publish(self, payload: bytes) -> None:
        """Send one record."""
        await self._client.publish(self._subject, payload, reply=self._reply)
        self._sent += 1

    async def wait_for(self, *, unanswered: int) -> None:
        """Return when at most this many records are in flight."""
        while self._sent - self.answered > unanswered:
            self._answer.clear()
            await self._answer.wait()

    async def _count(self, message: Msg) -> None:
        if b'"error"' in message.data or not message.data:
            raise LoadFailed(f"JetStream refused a record: {message.data!r}")
        self.answered += 1
        self._answer.set()


@asynccontextmanager
async def _stream_of(job: Job) -> AsyncIterator[tuple[Client, JetStreamContext]]:
    failures: list[Exception] = []

    async def note(error: Exception) -> None:
        failures.append(error)

    client = await nats.connect(f"nats://{job.address}", error_cb=note, pending_size=64 * 1024 * 1024)
    jetstream = client.jetstream()
    try:
        await jetstream.stream_info(job.topic)
    except NotFoundError:
        await jetstream.add_stream(name=job.topic, subjects=[job.topic], storage=StorageType.FILE)
    yield client, jetstream
    if not job.keep:
        await jetstream.delete_stream(job.topic)
    await client.close()
    if failures:
        raise failures[0]


async def _wait_for(met: Callable[[], bool], seconds: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not met() and loop.time() < deadline:
        await asyncio.sleep(0.001)
