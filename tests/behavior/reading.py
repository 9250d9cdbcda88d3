"""Reading until a condition holds: what tests do instead of sleeping."""

import time
from collections.abc import Callable, Iterable

from tests.behavior.clients.contract import Consumer, Received, TopicPartition

DEADLINE_S = 100.0
TURN_S = 0.05
QUIET_S = 0.5


def read(consumer: Consumer, count: int) -> list[Received]:
    """At least `count` messages, in the order of their arrival."""
    received: list[Received] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(received) < count:
        received += consumer.poll(TURN_S)
        assert time.monotonic() < deadline, f"{len(received)} of {count} messages arrived: {values(received)}"
    return received


def read_quietly(consumer: Consumer) -> list[Received]:
    """What arrives within a short time: for showing that nothing does."""
    received: list[Received] = []
    end = time.monotonic() + QUIET_S
    while time.monotonic() < end:
        received += consumer.poll(TURN_S)
    return received


def values(received: Iterable[Received]) -> list[bytes | None]:
    """The values alone."""
    return [message.value for message in received]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds; `what` names it for the failure."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"


class ConsumerPool:
    """Several consumers, polled in turns by one thread; each one's messages are kept apart."""

    def __init__(self, *consumers: Consumer) -> None:
        self.consumers = list(consumers)
        self.received: list[list[Received]] = [[] for _ in consumers]

    def poll_until(self, condition: Callable[[], bool], what: str) -> None:
        """Poll every consumer in turns until the condition holds."""

        def turn() -> bool:
            for consumer, received in zip(self.consumers, self.received, strict=True):
                received.extend(consumer.poll(TURN_S))
            return condition()

        wait_until(turn, what)

    def settle(self, topic: str, partitions: int) -> None:
        """Poll until the consumers share all partitions of the topic, each one at least one of them."""
        everything = sorted(TopicPartition(topic, number) for number in range(partitions))

        def is_divided() -> bool:
            shares = [consumer.assignment() for consumer in self.consumers]
            return all(shares) and sorted(part for share in shares for part in share) == everything

        self.poll_until(is_divided, f"{len(self.consumers)} consumers to share {partitions} partitions")

    def read(self, count: int) -> None:
        """Poll until the consumers have that many messages between them."""
        self.poll_until(lambda: sum(map(len, self.received)) >= count, f"{count} messages")
