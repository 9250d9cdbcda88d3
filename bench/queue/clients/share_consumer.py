"""librdkafka's share consumer: each message is acknowledged and committed."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException, Message, ShareConsumer

from bench.queue.clients.kafka_topic import group_of, prepare, send_all
from bench.queue.clients.worker_pool import LONGEST_S, run_pool
from bench.queue.job import Job, Outcome

POLL_S = 0.1


class ShareWorker:
    """One share consumer."""

    def __init__(self, consumer: ShareConsumer) -> None:
        self._consumer = consumer
        self._taken: list[Message] = []

    def take(self) -> list[bytes]:
        """The next batch of messages."""
        self._taken = [message for message in self._consumer.poll(POLL_S) if message.error() is None]
        return [message.value() for message in self._taken]

    def acknowledge(self, index: int) -> None:
        """Accept one message, and send the acknowledgment."""
        self._consumer.acknowledge(self._taken[index])
        if index < len(self._taken) - 1:  # the last one goes with `confirm`, and is answered last
            self._consumer.commit_async()

    def confirm(self) -> None:
        """Return when the broker has the acknowledgments; raises if it rejected one."""
        for fault in self._consumer.commit_sync(LONGEST_S).values():
            if fault is not None:
                raise KafkaException(fault)


@contextmanager
def worker(job: Job) -> Iterator[ShareWorker]:
    """A consumer that has joined its group."""
    consumer = ShareConsumer(
        {
            "bootstrap.servers": job.address,
            "group.id": group_of(job),
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([job.topic])
    try:
        yield ShareWorker(consumer)
    finally:
        consumer.close()


def run(job: Job) -> Outcome:
    """Run the job."""
    prepare(job)
    return run_pool(job, worker, send_all)
