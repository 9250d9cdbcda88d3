"""Stores the records of concurrent requests through one librdkafka producer, in batches.

    results = await producer.send("orders", [OutgoingRecord(b'{"product": "tea"}')])

Each result has the partition and the offset of a record, once the log has it, or the error. The producer is
idempotent: a record is stored once, also if librdkafka sends it again. Delivery reports are collected in the
event loop, every millisecond while records are in flight: a thread for it would compete for the interpreter
with the loop, and costs more CPU time than the timer.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.client.bootstrap import SILENT, client_config
from headrace.gateway.errors import RETRY_AFTER_S, UNAUTHORIZED_CODES, UNKNOWN_CODES, HttpError

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_S: Final = 0.001
IDLE_POLL_S: Final = 1.0
"""How often an idle producer serves other callbacks, such as that for a new token."""
ANY_PARTITION: Final = -1
METADATA_TIMEOUT_MS: Final = 2_000
"""How long a topic may be unknown until the answer is 404."""
TOPIC_FULL: Final = KafkaError.POLICY_VIOLATION
TIMED_OUT: Final = (KafkaError._MSG_TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT)
UNKNOWN: Final = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, *UNKNOWN_CODES)
TOO_LARGE: Final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)
INVALID: Final = (KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError._INVALID_ARG)
FATAL: Final = (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
THROTTLED: Final = 89  # THROTTLING_QUOTA_EXCEEDED


RecordHeaders = list[tuple[str, str | bytes | None]]


class OutgoingRecord(NamedTuple):
    """A record to store."""

    value: bytes | None
    key: bytes | None = None
    partition: int = ANY_PARTITION
    timestamp_ms: int = 0
    headers: RecordHeaders = []  # noqa: RUF012  librdkafka takes only lists, and changes none


class StoredRecord(NamedTuple):
    """Where a record is."""

    partition: int
    offset: int


class RejectedRecord(NamedTuple):
    """A record that was not stored, and why."""

    status: HTTPStatus
    reason: str

    def error(self) -> HttpError:
        """The error of a request in which no record was stored."""
        retry = self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
        headers = ((b"retry-after", str(RETRY_AFTER_S).encode()),) if retry else ()
        return HttpError(self.status, self.reason, headers)


Result = StoredRecord | RejectedRecord


class RecordProducer:
    """A producer for one user, in one event loop."""

    def __init__(self, bootstrap: str, *, timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._is_down = False
        self._is_broken = False
        self._fatal_error: KafkaError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._producer = self._connect()
        self._schedule()

    def send(self, topic: str, records: Sequence[OutgoingRecord]) -> asyncio.Future[list[Result]]:
        """Store the records; the results are in their order."""
        if self._is_broken:
            self._producer, self._is_broken, self._fatal_error = self._connect(), False, None
        pending = _PendingRequest(self, topic, len(records))
        was_idle = not self._in_flight
        self._in_flight += len(records)
        produce = self._producer.produce
        for index, record in enumerate(records):
            value, key, partition, timestamp_ms, headers = record
            delivered = pending if len(records) == 1 else partial(pending.deliver, index)
            try:
                produce(
                    topic, value, key, partition, on_delivery=delivered, timestamp=timestamp_ms,
                    headers=headers,
                )  # fmt: skip
            except BufferError:
                pending.finish(index, RejectedRecord(HTTPStatus.TOO_MANY_REQUESTS, "the send queue is full"))
            except KafkaException as fault:
                if fault.args[0].code() == KafkaError._FATAL:
                    self._find_fatal_error()
                pending.finish(index, self.rejection(topic, fault.args[0]))
            except (TypeError, ValueError, OverflowError) as fault:
                pending.finish(index, RejectedRecord(HTTPStatus.BAD_REQUEST, f"not a record: {fault}"))
        if was_idle:
            self._schedule()
        return pending.future

    async def close(self) -> None:
        """Wait for the records in flight."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        with contextlib.suppress(KafkaException):
            await self._loop.run_in_executor(None, self._producer.flush, self._timeout_s)

    def record_done(self) -> None:
        """Count a record that is no longer in flight."""
        self._in_flight -= 1

    def rejection(self, topic: str, error: KafkaError) -> RejectedRecord:
        """The HTTP status and the reason of librdkafka's error."""
        self._is_broken = self._is_broken or error.fatal()
        if error.code() in FATAL and self._fatal_error is not None:
            error = self._fatal_error
        code = error.code()
        if code == THROTTLED or (code in TIMED_OUT and not self._is_down):
            return RejectedRecord(
                HTTPStatus.TOO_MANY_REQUESTS, f"the topic {topic!r} did not take the record in time"
            )
        return _refusal(topic, error) or RejectedRecord(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the broker did not confirm the record, which may be stored or not: {error.name()}",
        )

    def note_success(self) -> None:
        """Note that a broker answers."""
        self._is_down = False

    def _connect(self) -> Producer:
        more = {
            "client.id": "headrace-gateway",
            "enable.idempotence": True,
            "linger.ms": 1,
            "partitioner": "murmur2_random",
            "message.timeout.ms": int(self._timeout_s * 1000),
            "topic.metadata.propagation.max.ms": METADATA_TIMEOUT_MS,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": 64 << 20,  # the topic's own limit decides
            "error_cb": self._on_error,
            "logger": SILENT,
        }
        return Producer(client_config(self._bootstrap, more))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            self._is_down = True
        self._is_broken = self._is_broken or error.fatal()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(POLL_S if self._in_flight else IDLE_POLL_S, self._poll)

    def _poll(self) -> None:
        self._timer = None
        try:
            self._producer.poll(0)
        except KafkaException as fault:  # an idempotent producer may be unable to go on
            self._fail_all(fault.args[0])
        self._schedule()

    def _find_fatal_error(self) -> None:
        """Learn why the producer cannot go on: it says so when it is polled."""
        try:
            self._producer.poll(0)
        except KafkaException as fault:
            self._fail_all(fault.args[0])
        self._is_broken = True

    def _fail_all(self, error: KafkaError) -> None:
        """Fail the records in flight with a fatal error; the next request gets a new producer."""
        self._fatal_error, self._is_broken = error, True
        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.flush(0)


class _PendingRequest:
    """The records of one request until all have a result; called with the delivery report of a single one."""

    __slots__ = ("_left", "_producer", "_results", "_topic", "future")

    def __init__(self, producer: RecordProducer, topic: str, count: int) -> None:
        self._producer = producer
        self._topic = topic
        self._left = count
        self._results: list[Any] = [None] * count
        self.future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        if not count:
            self.future.set_result([])

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.deliver(0, error, message)

    def deliver(self, index: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._producer.note_success()
            self.finish(index, StoredRecord(message.partition(), message.offset()))
        else:
            self.finish(index, self._producer.rejection(self._topic, error))

    def finish(self, index: int, result: Result) -> None:
        self._producer.record_done()
        self._results[index] = result
        self._left -= 1
        if not self._left and not self.future.done():  # a disconnected client has cancelled it
            self.future.set_result(self._results)


def _refusal(topic: str, error: KafkaError) -> RejectedRecord | None:
    """The status and the reason of an error that repeating the request does not solve, or of a full topic."""
    code = error.code()
    if code in UNAUTHORIZED_CODES or code == KafkaError._AUTHENTICATION:
        return RejectedRecord(HTTPStatus.FORBIDDEN, f"writing to the topic {topic!r} is not allowed")
    if code in UNKNOWN:
        return RejectedRecord(HTTPStatus.NOT_FOUND, f"the topic or partition does not exist: {topic!r}")
    if code in TOO_LARGE:
        return RejectedRecord(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the record is too large for {topic!r}")
    if code in INVALID:
        reason = f"the broker refused the record: {error.str()} ({error.name()})"
        return RejectedRecord(HTTPStatus.BAD_REQUEST, reason)
    if code == TOPIC_FULL:
        return RejectedRecord(HTTPStatus.TOO_MANY_REQUESTS, f"the topic {topic!r} is full")
    return None
