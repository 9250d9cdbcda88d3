"""Headrace's own `queue(…)`, on whatever speaks Kafka: accepted when the body of the loop ends."""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.queue.clients.crowd import run_crowd
from bench.queue.clients.kafka_topic import group_of, prepare, send_all
from bench.queue.job import Job, Outcome
from headrace.queues.message import Message, Verdict
from headrace.queues.queue import queue
from headrace.queues.receiver import Receiver

PREFETCH = 64


class OwnWorker:
    """One open queue, driven step by step as its loop would."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._messages: list[Message] = []

    def take(self) -> list[bytes]:
        """The messages that come together."""
        first = self._receiver.take()
        self._messages = [] if first is None else [first]
        while self._receiver.is_ready:
            more = self._receiver.take()
            assert more is not None
            self._messages.append(more)
        return [message.value or b"" for message in self._messages]

    def acknowledge(self, index: int) -> None:
        """Accept one message, and tell the broker."""
        self._receiver.finish(self._messages[index], Verdict.ACCEPT)
        self._receiver.send()

    def confirm(self) -> None:
        """Return when the broker has heard it."""
        self._receiver.settle()


@contextmanager
def worker(job: Job) -> Iterator[OwnWorker]:
    """A queue that has joined its group."""
    prefetch = PREFETCH if job.act == "drain" else 1
    described = queue(job.topic, group=group_of(job), broker=job.address, prefetch=prefetch)
    receiver = Receiver(described, job.address)
    try:
        yield OwnWorker(receiver)
    finally:
        receiver.close()


def run(job: Job) -> Outcome:
    """Do the job."""
    prepare(job)
    return run_crowd(job, worker, send_all)
