"""Headrace's `queue(…)`: a message is accepted when the body of the loop ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.queue.clients.kafka_topic import group_of, prepare, send_all
from bench.queue.clients.worker_pool import run_pool
from bench.queue.job import Job, Outcome
from headrace.protocol.share import AcknowledgeType
from headrace.queues import Message, queue
from headrace.queues.consumer import ShareConsumer

PREFETCH = 64


class OwnWorker:
    """One open queue, driven step by step as its loop would."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self._messages: list[Message] = []

    def take(self) -> list[bytes]:
        """The next batch of messages."""
        first = self._consumer.poll()
        self._messages = [] if first is None else [first]
        while self._consumer.is_ready:
            more = self._consumer.poll()
            assert more is not None
            self._messages.append(more)
        return [message.value or b"" for message in self._messages]

    def acknowledge(self, index: int) -> None:
        """Accept one message, and send the acknowledgment."""
        self._consumer.acknowledge(self._messages[index], AcknowledgeType.ACCEPT)
        self._consumer.send()

    def confirm(self) -> None:
        """Return when the broker has the acknowledgment."""
        self._consumer.flush()


@contextmanager
def worker(job: Job) -> Iterator[OwnWorker]:
    """A queue that has joined its group."""
    prefetch = PREFETCH if job.act == "drain" else 1
    described = queue(job.topic, group=group_of(job), broker=job.address, prefetch=prefetch)
    consumer = ShareConsumer(described, job.address)
    try:
        yield OwnWorker(consumer)
    finally:
        consumer.close()


def run(job: Job) -> Outcome:
    """Run the job."""
    prepare(job)
    return run_pool(job, worker, send_all)
