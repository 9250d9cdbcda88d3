"""NATS JetStream as a work queue: pull consumers of one durable name; each message is acknowledged."""

import asyncio
import time

import nats
from nats.aio.client import Client
from nats.errors import TimeoutError as NothingCame
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext

from bench.queue.clients.worker_pool import LONGEST_S, STAMP, Sample, sample, steady
from bench.queue.job import Job, Outcome

AT_ONCE = 64
WAIT_S = 0.1
UNCONFIRMED = 256


class Run:
    """One load in one event loop: what the crowd of threads is for the clients that block."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.left = job.messages
        self.samples: list[Sample] = []
        self.done = asyncio.Event()
        self.first_at = 0.0

    async def work(self, connection: Client) -> None:
        """One worker: take messages, acknowledge each."""
        at_once = AT_ONCE if self.job.act == "drain" else 1
        subscription = await connection.jetstream().pull_subscribe(self.job.topic, durable="crew")
        while not self.done.is_set():
            try:
                messages = await subscription.fetch(at_once, timeout=WAIT_S)
            except (NothingCame, TimeoutError):  # it raises the one or the other
                continue
            self.first_at = self.first_at or time.perf_counter()
            for message in messages:
                await message.ack()
            await connection.flush()  # all that was sent before it has arrived
            self._count([message.data for message in messages])

    def _count(self, values: list[bytes]) -> None:
        now_ns = time.perf_counter_ns()
        self.samples += [sample(value, now_ns) for value in values]
        self.left -= len(values)
        if self.left <= 0:
            self.done.set()

    async def send(self, stream: JetStreamContext) -> None:
        """Send all messages, for latencies at the job's rate."""
        filling = b"x" * (self.job.message_bytes - STAMP.size)
        begin = time.perf_counter()
        unconfirmed: list[asyncio.Future[object]] = []
        for number in range(self.job.messages):
            if self.job.act == "latency":
                await asyncio.sleep(max(begin + number / self.job.rate - time.perf_counter(), 0))
            payload = STAMP.pack(time.perf_counter_ns()) + filling
            unconfirmed.append(await stream.publish_async(self.job.topic, payload))
            if len(unconfirmed) >= UNCONFIRMED:
                await asyncio.gather(*unconfirmed)
                unconfirmed.clear()
        await asyncio.gather(*unconfirmed)


async def _run(job: Job) -> Outcome:
    connections = [await nats.connect(f"nats://{job.address}") for _ in range(job.consumers + 1)]
    streams = [connection.jetstream() for connection in connections]
    config = StreamConfig(
        name=job.topic, subjects=[job.topic], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
    )
    await streams[0].add_stream(config)
    await streams[0].add_consumer(
        job.topic, ConsumerConfig(durable_name="crew", ack_policy=AckPolicy.EXPLICIT, max_ack_pending=2_000)
    )
    run = Run(job)
    if job.act == "drain":
        await run.send(streams[0])
    workers = [asyncio.create_task(run.work(connection)) for connection in connections[1:]]
    if job.act == "latency":
        await run.send(streams[0])
    await asyncio.wait_for(run.done.wait(), LONGEST_S)
    seconds = time.perf_counter() - run.first_at
    await asyncio.gather(*workers)
    for connection in connections:
        await connection.close()
    return Outcome(seconds=seconds, latencies_ms=steady(run.samples))


def run(job: Job) -> Outcome:
    """Run the job."""
    return asyncio.run(_run(job))
