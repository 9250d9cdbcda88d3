"""Sending records, with an account of what was acknowledged and of the first line that was not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.cli.record_input import NewRecord
    from headrace.cli.session import Session

POLL_EVERY: Final = 1000
SMALLEST_LIMIT_BYTES: Final = 1000
"""librdkafka takes no lower limit for a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFailure:
    """Lines whose records were not stored, and why the first of them was not."""

    line: int
    last: int
    """The last of the lines: records of one batch are refused together."""
    reason: str


class Sender:
    """A producer for one topic. Unless `acks` is 0 or 1, records of a partition arrive once and in order."""

    def __init__(
        self, session: Session, topic: str, *, acks: str, compression: str, limit_bytes: int
    ) -> None:
        from confluent_kafka import KafkaException, Producer

        self._topic = topic
        self._refused = KafkaException
        self._producer = Producer(self._config(session, acks, compression, limit_bytes))
        self._sent = 0
        self._failed = 0
        self.failure: SendFailure | None = None

    @property
    def acknowledged(self) -> int:
        """How many records the broker has, once `finish` has returned."""
        return self._sent - self._failed

    def send(self, line: int, record: NewRecord) -> None:
        """Hand over the record of a line; this waits while too many are under way."""
        self._sent += 1
        try:
            while not self._enqueue(line, record):
                self._producer.poll(0.1)
        except self._refused as fault:
            self._note(line, fault.args[0], None)
        if self._sent % POLL_EVERY == 0:
            self._producer.poll(0)

    def finish(self) -> None:
        """Wait until every record has been acknowledged or has failed."""
        # A finite wait in a loop, so that Ctrl-C is noticed.
        while self._producer.flush(0.5):
            pass

    def _enqueue(self, line: int, record: NewRecord) -> bool:
        try:
            self._producer.produce(
                self._topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp_ms,
                headers=record.headers,
                on_delivery=partial(self._note, line),
            )
        except BufferError:
            return False
        return True

    def _note(self, line: int, error: KafkaError | None, _: Any) -> None:
        """Count a record that failed; librdkafka calls this for no other (`delivery.report.only.error`)."""
        self._failed += 1
        if error is None:
            return
        first = self.failure or SendFailure(line=line, last=line, reason=f"{error.str()} ({error.name()})")
        self.failure = SendFailure(
            line=min(line, first.line), last=max(line, first.last), reason=first.reason
        )

    @staticmethod
    def _config(session: Session, acks: str, compression: str, limit_bytes: int) -> dict[str, Any]:
        return session.client_config(
            acks=acks,
            compression_type=compression,
            enable_idempotence=acks == "all",
            # As the Java client and Headrace's own jobs choose, so that a key has one partition.
            partitioner="murmur2_random",
            delivery_report_only_error=True,
            message_timeout_ms=int(session.timeout_s * 1000),
            # Batches no larger than the topic takes, and a record that is too large is known by its line.
            message_max_bytes=max(limit_bytes, SMALLEST_LIMIT_BYTES),
            queue_buffering_max_messages=500_000,
        )
