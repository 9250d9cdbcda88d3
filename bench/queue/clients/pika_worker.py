"""RabbitMQ by pika: a durable queue and persistent messages; each message is acknowledged."""

from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel

from bench.queue.clients.worker_pool import run_pool
from bench.queue.job import Job, Outcome

PREFETCH = 64
WAIT_S = 0.1
CHECK_S = 0.02


def _connect(job: Job) -> pika.BlockingConnection:
    host, _, port = job.address.rpartition(":")
    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))


class PikaWorker:
    """One consumer with its own channel."""

    def __init__(self, channel: BlockingChannel, queue: str) -> None:
        self._channel = channel
        self._messages = channel.consume(queue, inactivity_timeout=WAIT_S)
        self._tag = 0

    def take(self) -> list[bytes]:
        """The next message."""
        method, _, body = next(self._messages)
        if method is None:
            return []
        self._tag = method.delivery_tag
        return [body]

    def acknowledge(self, index: int) -> None:  # noqa: ARG002  there is one
        """Accept the message."""
        self._channel.basic_ack(self._tag)

    def confirm(self) -> None:
        """Do nothing: AMQP does not confirm acknowledgments."""


@contextmanager
def worker(job: Job) -> Iterator[PikaWorker]:
    """A consumer of the queue."""
    connection = _connect(job)
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH if job.act == "drain" else 1)
        yield PikaWorker(channel, job.topic)
    finally:
        connection.close()


def _send(job: Job, payloads: Iterator[bytes]) -> None:
    """Send the messages without waiting for each, as librdkafka does; a queue to be drained is then full."""
    connection = _connect(job)
    channel = connection.channel()
    persistent = pika.BasicProperties(delivery_mode=2)
    for payload in payloads:
        channel.basic_publish("", job.topic, payload, persistent)
    while job.act == "drain" and _waiting(channel, job.topic) < job.messages:
        connection.sleep(CHECK_S)
    connection.close()


def _waiting(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def run(job: Job) -> Outcome:
    """Run the job."""
    connection = _connect(job)
    connection.channel().queue_declare(job.topic, durable=True)
    connection.close()
    return run_pool(job, worker, _send)
