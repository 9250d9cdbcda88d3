"""Records in the log behind an open transaction, which all become visible at once.

So a measurement begins at a defined time, without a producer that uses the CPU. Every system reads committed
records only.
"""

import uuid
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer

from bench.streams.inputs import PIECE, Events
from bench.topics import TIMEOUT_SECONDS

QUEUED = 400_000
SETTINGS = {
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": QUEUED + 2 * PIECE,
    "delivery.report.only.error": True,
    "log_level": 0,
}


class Writer:
    """A writer whose records are visible immediately."""

    def __init__(self, bootstrap: str, **more: Any) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **SETTINGS, **more})

    def write_events(self, topic: str, events: Events) -> None:
        """Write events."""
        for begin in range(0, len(events), PIECE):
            self.write(topic, events.messages(begin, begin + PIECE))

    def write(self, topic: str, messages: Iterable[dict[str, Any]]) -> None:
        """Write some records, not many more than a piece."""
        produce = self._producer.produce  # one by one: batches cannot have timestamps
        for message in messages:
            produce(topic, **message)
        while len(self._producer) > QUEUED:
            self._producer.poll(0.01)

    def settle(self) -> None:
        """Return when the broker has all records."""
        if self._producer.flush(TIMEOUT_SECONDS):
            raise RuntimeError("the broker did not take all records in time")


class Gate(Writer):
    """A writer whose records become visible when it is opened."""

    def __init__(self, bootstrap: str) -> None:
        name = f"bench-{uuid.uuid4().hex[:12]}"
        super().__init__(bootstrap, **{"transactional.id": name, "transaction.timeout.ms": 900_000})
        self._producer.init_transactions(TIMEOUT_SECONDS)
        self._producer.begin_transaction()

    def open(self) -> None:
        """Commit what was written; later records are invisible until the next `open`."""
        self._producer.commit_transaction(TIMEOUT_SECONDS)
        self._producer.begin_transaction()

    def close(self) -> None:
        """End without committing the remaining records."""
        self._producer.abort_transaction(TIMEOUT_SECONDS)
