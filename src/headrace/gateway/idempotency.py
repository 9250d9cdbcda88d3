"""Requests with an `Idempotency-Key`: the same key gets the same answer, and its records are stored once.

The records of a request and a record of its key go into one transaction. The records of keys are in the
compacted topic `headrace.idempotency`, or `headrace.idempotency.USER` for authenticated users:

    key    orders/4f1c…             the topic and the idempotency key
    value  {"digest": "…", "offsets": [[0, 17]]}

Concurrent requests share a transaction. A gateway that starts again reads the topic after it has fenced its
predecessor, whose open transaction is thereby aborted: so a key is either there with its records, or neither
is. Keys are kept for a day. The guarantee is that of one gateway: two gateways do not share their keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.client.bootstrap import SILENT, client_config
from headrace.client.cluster import Cluster
from headrace.client.fetch import read_records, skip_unreadable
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError
from headrace.gateway.errors import UNAUTHORIZED_CODES, HttpError, http_error, too_many
from headrace.gateway.producer import StoredRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.gateway.producer import OutgoingRecord

TOPIC: Final = "headrace.idempotency"
RETENTION_MS: Final = 24 * 3600 * 1000
MAX_KEYS: Final = 1_000_000
MAX_KEY_LENGTH: Final = 255
MAX_BATCH: Final = 500
_CONFIGS: Final = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(RETENTION_MS),
    "segment.ms": str(3600 * 1000),
}


@dataclass(slots=True)
class _PendingWrite:
    key: str
    digest: str
    topic: str
    records: Sequence[OutgoingRecord]
    future: asyncio.Future[list[StoredRecord]]
    stored: list[Any] = field(default_factory=list)
    error: KafkaError | None = None


class KeyedWriter:
    """Writes the requests of one user that have idempotency keys; for one event loop."""

    def __init__(self, bootstrap: str, *, gateway: str, user: str | None, timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._topic = TOPIC if user is None else f"{TOPIC}.{user}"
        self._transactional_id = ".".join(filter(None, ("headrace.gateway", gateway, user)))
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="idempotency")
        self._producer: Producer | None = None
        self._answers: OrderedDict[str, tuple[str, list[StoredRecord]]] = OrderedDict()
        self._writes: dict[str, _PendingWrite] = {}
        """Requests whose answers are not yet known, by key."""
        self._queue: list[_PendingWrite] = []
        self._task: asyncio.Task[None] | None = None

    async def write(
        self, topic: str, key: str, body: bytes, records: Sequence[OutgoingRecord]
    ) -> list[StoredRecord]:
        """Store the records once, and return where they are, also if the key was used before.

        Raises an error with 422 if the key was used with another body.
        """
        full_key, digest = f"{topic}/{key}", hashlib.sha256(body).hexdigest()
        await self._start()
        answer = self._answers.get(full_key)
        if answer is not None:
            _check_digest(answer[0], digest)
            return answer[1]
        write = self._writes.get(full_key)
        if write is not None:
            _check_digest(write.digest, digest)
        else:
            write = _PendingWrite(full_key, digest, topic, records, self._loop.create_future())
            # An error without a waiting client is of no interest.
            write.future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._writes[full_key] = write
            self._queue.append(write)
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._drain())
        # The client may disconnect; the write goes on.
        return await asyncio.shield(write.future)

    async def close(self) -> None:
        """Wait for writes, and disconnect."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._producer = None
        self._thread.shutdown(wait=False)

    async def _start(self) -> None:
        if self._producer is None:
            await self._in_thread(self._open)

    async def _drain(self) -> None:
        while self._queue:
            batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
            try:
                await self._in_thread(self._commit_all, batch)
            except HttpError as fault:
                for write in batch:
                    if not write.future.done():
                        write.future.set_exception(fault)
            finally:
                for write in batch:
                    del self._writes[write.key]

    async def _in_thread(self, call: Any, *arguments: Any) -> None:
        try:
            await self._loop.run_in_executor(self._thread, call, *arguments)
        except HttpError:
            raise
        except HeadraceError as fault:
            raise http_error(fault) from fault
        except KafkaException as fault:
            raise self._failure(fault.args[0]) from fault

    def _failure(self, error: KafkaError) -> HttpError:
        if error.code() in UNAUTHORIZED_CODES:
            return HttpError(
                HTTPStatus.FORBIDDEN,
                f"idempotency keys need write access to the topic {self._topic!r} and to the transactional "
                f"id {self._transactional_id!r}: {error.str()}",
            )
        if error.code() == KafkaError.POLICY_VIOLATION:
            return too_many("the topic is full")
        if error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART):
            return HttpError(HTTPStatus.NOT_FOUND, f"the topic or partition does not exist: {error.str()}")
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
            return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a record is too large for its topic")
        return HttpError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the broker did not confirm the request: repeat it with the same key ({error.name()})",
            ((b"retry-after", b"1"),),
        )

    # ---------------------------------------------------------------------------------------- in the thread

    def _open(self) -> None:
        """Fence a predecessor, and read the keys that it wrote."""
        if self._producer is not None:
            return
        with Cluster.of(self._bootstrap, client_id="headrace-gateway", timeout_s=self._timeout_s) as cluster:
            if self._topic not in cluster.topics((self._topic,)):
                create_topics(cluster, [NewTopic(name=self._topic, partitions=1, configs=_CONFIGS)])
            producer = Producer(client_config(self._bootstrap, self._config()))
            producer.init_transactions(self._timeout_s)
            self._read_keys(cluster)
        self._producer = producer

    def _config(self) -> dict[str, Any]:
        return {
            "client.id": "headrace-gateway",
            "transactional.id": self._transactional_id,
            "transaction.timeout.ms": 60_000,
            "message.timeout.ms": int(self._timeout_s * 1000),
            "topic.metadata.propagation.max.ms": 2_000,
            "message.max.bytes": 64 << 20,
            "partitioner": "murmur2_random",
            "linger.ms": 0,
            "logger": SILENT,
        }

    def _read_keys(self, cluster: Cluster) -> None:
        partition = TopicPartition(self._topic, 0)
        start, end = (list_offsets(cluster, {partition: which})[partition] for which in (EARLIEST, LATEST))
        oldest_ms = time.time() * 1000 - RETENTION_MS
        for record in skip_unreadable(read_records(cluster, partition, start, end)):
            if record.key is None or record.value is None or record.timestamp < oldest_ms:
                continue
            document = json.loads(record.value)
            stored = [StoredRecord(*place) for place in document["offsets"]]
            self._remember(record.key.decode(), document["digest"], stored)

    def _remember(self, key: str, digest: str, stored: list[StoredRecord]) -> None:
        self._answers[key] = (digest, stored)
        self._answers.move_to_end(key)
        if len(self._answers) > MAX_KEYS:
            self._answers.popitem(last=False)

    def _commit_all(self, batch: list[_PendingWrite]) -> None:
        """Commit the requests together; if one fails, each on its own."""
        try:
            self._commit(batch)
        except (KafkaException, HeadraceError):
            if len(batch) == 1:
                raise
            for write in batch:
                try:
                    self._commit([write])
                except KafkaException as fault:
                    self._fail(write, self._failure(fault.args[0]))
                except HeadraceError as fault:
                    self._fail(write, http_error(fault))

    def _fail(self, write: _PendingWrite, fault: HttpError) -> None:
        self._loop.call_soon_threadsafe(_set_exception, write.future, fault)

    def _commit(self, batch: list[_PendingWrite]) -> None:
        if self._producer is None:
            self._open()
        batch = [write for write in batch if not self._is_answered(write)]
        producer = self._producer
        assert producer is not None
        try:
            producer.begin_transaction()
            for write in batch:
                self._produce(producer, write)
            self._flush(producer, batch)
            for write in batch:
                document = {"digest": write.digest, "offsets": [list(place) for place in write.stored]}
                producer.produce(self._topic, json.dumps(document).encode(), write.key.encode(), partition=0)
            _commit_transaction(producer, self._timeout_s)
        except BaseException as fault:
            self._abort(producer, fault)
            raise
        for write in batch:
            self._remember(write.key, write.digest, write.stored)
            self._loop.call_soon_threadsafe(_set_result, write.future, write.stored)

    def _is_answered(self, write: _PendingWrite) -> bool:
        """Whether a transaction of unknown outcome turned out to be committed."""
        answer = self._answers.get(write.key)
        if answer is None:
            return False
        self._loop.call_soon_threadsafe(_set_result, write.future, answer[1])
        return True

    def _produce(self, producer: Producer, write: _PendingWrite) -> None:
        write.stored = [None] * len(write.records)
        write.error = None
        for index, record in enumerate(write.records):

            def delivered(
                error: KafkaError | None, message: Any, write: _PendingWrite = write, index: int = index
            ) -> None:
                if error is not None:
                    write.error = error
                else:
                    write.stored[index] = StoredRecord(message.partition(), message.offset())

            producer.produce(
                write.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms,
                headers=record.headers,
            )
            producer.poll(0)

    def _flush(self, producer: Producer, batch: list[_PendingWrite]) -> None:
        left = producer.flush(self._timeout_s)
        for write in batch:
            if write.error is not None:
                raise KafkaException(write.error)
        if left:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))

    def _abort(self, producer: Producer, fault: BaseException) -> None:
        """Abort the transaction; a producer that cannot is replaced, and the keys are read again."""
        try:
            producer.abort_transaction(self._timeout_s)
        except (KafkaException, BufferError):
            self._producer = None
        else:
            error = fault.args[0] if isinstance(fault, KafkaException) else None
            if not isinstance(error, KafkaError) or not error.txn_requires_abort():
                self._producer = None  # the outcome of a commit may be unknown


def _commit_transaction(producer: Producer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            producer.commit_transaction(timeout_s)
        except KafkaException as fault:
            if not fault.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def _set_result(future: asyncio.Future[list[StoredRecord]], stored: list[StoredRecord]) -> None:
    if not future.done():
        future.set_result(stored)


def _set_exception(future: asyncio.Future[list[StoredRecord]], fault: HttpError) -> None:
    if not future.done():
        future.set_exception(fault)


def _check_digest(known: str, digest: str) -> None:
    if known != digest:
        raise HttpError(
            HTTPStatus.UNPROCESSABLE_ENTITY, "the idempotency key was used before with another body"
        )


def read_idempotency_key(header: bytes) -> str:
    """The key in a header: 1 to 255 printable ASCII characters, also in quotes (RFC 8941)."""
    text = header.decode("latin-1").strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if not 0 < len(text) <= MAX_KEY_LENGTH or not text.isascii() or not text.isprintable():
        raise HttpError(
            HTTPStatus.BAD_REQUEST,
            f"the Idempotency-Key is not 1 to {MAX_KEY_LENGTH} printable ASCII characters",
        )
    return text
