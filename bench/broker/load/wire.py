"""Load by prebuilt requests on one socket: the capacity of the broker, with hardly any client cost.

Headrace and Apache Kafka get the same bytes: Produce 7 and Fetch 4, the simplest versions that both serve
with the current format of record batches. Only responses are parsed, not records.
"""

import random
import socket
import struct
from collections import deque

from bench.broker.load.batch import build_batch
from bench.broker.load.job import Job, Outcome, Window
from bench.broker.load.librdkafka import LoadFailed, topic_of

PRODUCE, FETCH = (0, 7), (1, 4)
BATCH_BYTES = 256 * 1024
FETCH_BYTES = 4 * 1024 * 1024
IN_FLIGHT = 5


def produce(job: Job) -> Outcome:
    """Batches of 256 KiB, five requests in flight."""
    return _replay(job, count=batch_records(job), in_flight=IN_FLIGHT)


def requests(job: Job) -> Outcome:
    """Batches of one record."""
    return _replay(job, count=1, in_flight=job.in_flight)


def consume(job: Job) -> Outcome:
    """Fetches of up to 4 MiB, one after the other, of the batches that `produce` wrote, repeatedly."""
    with topic_of(job), Wire(job.address) as wire:
        count = batch_records(job)
        batch_bytes = len(_make_batch(job, count))
        records = offset = 0
        with Window(job) as window:
            while window.is_open:
                wire.send(FETCH, _fetch_body(job.topic, offset))
                fetched = _fetched_bytes(wire.receive(), job.topic) // batch_bytes * count
                records += fetched
                offset = offset + fetched if offset + fetched < job.records else 0
        return window.outcome(records)


def batch_records(job: Job) -> int:
    """The number of records of the job's size in a batch."""
    return max(1, BATCH_BYTES // job.record_bytes)


def _replay(job: Job, *, count: int, in_flight: int) -> Outcome:
    """Send the same Produce request repeatedly, with this many in flight."""
    with topic_of(job), Wire(job.address) as wire:
        body = _produce_body(job.topic, _make_batch(job, count))
        sent = answered = 0
        with Window(job) as window:
            while answered < sent or window.is_open:
                if window.is_open and sent - answered < in_flight:
                    wire.send(PRODUCE, body)
                    sent += 1
                    continue
                _check_produced(wire.receive(), job.topic)
                answered += 1
        return window.outcome(answered * count)


def _make_batch(job: Job, count: int) -> bytes:
    return build_batch([random.randbytes(job.record_bytes)] * count)


class Wire:
    """One connection that sends requests and receives their responses in order."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(FETCH_BYTES + BATCH_BYTES * 2))
        self._awaited: deque[int] = deque()
        self._sent = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, api: tuple[int, int], body: bytes) -> None:
        """Send one request; its response has to be received later."""
        self._sent += 1
        header = struct.pack(">hhi", *api, self._sent) + _string("bench")
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        self._awaited.append(self._sent)

    def receive(self) -> memoryview:
        """The body of the next response; the following one overwrites it."""
        (length,) = struct.unpack(">i", self._receive(4))
        answer = self._receive(length)
        (correlation,) = struct.unpack_from(">i", answer)
        if correlation != (expected := self._awaited.popleft()):
            raise LoadFailed(f"the broker answered request {correlation}, and {expected} was next.")
        return answer[4:]

    def _receive(self, length: int) -> memoryview:
        view = self._buffer[:length]
        filled = 0
        while filled < length:
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise LoadFailed("the broker closed the connection in the middle of an answer.")
            filled += received
        return view


def _produce_body(topic: str, batch: bytes) -> bytes:
    acks, timeout_ms, partition = -1, 30_000, 0
    head = struct.pack(">hhi", -1, acks, timeout_ms)  # -1: no transactional id
    return head + _one(_string(topic) + _one(struct.pack(">ii", partition, len(batch)) + batch))


def _check_produced(answer: memoryview, topic: str) -> None:
    _, error = struct.unpack_from(">ih", answer, 4 + len(_string(topic)) + 4)
    if error:
        raise LoadFailed(f"the broker refused a batch with error {error}.")


def _fetch_body(topic: str, offset: int) -> bytes:
    wait_ms, min_bytes, uncommitted = 500, 1, 0
    head = struct.pack(">iiiib", -1, wait_ms, min_bytes, FETCH_BYTES, uncommitted)  # -1: a client, no replica
    return head + _one(_string(topic) + _one(struct.pack(">iqi", 0, offset, FETCH_BYTES)))


def _fetched_bytes(answer: memoryview, topic: str) -> int:
    start = 4 + 4 + len(_string(topic)) + 4  # throttle time, one topic, its name, one partition
    _, error, _, _, aborted, length = struct.unpack_from(">ihqqii", answer, start)
    if error or aborted > 0:
        raise LoadFailed(
            f"the broker answered a fetch with error {error} and {aborted} aborted transactions."
        )
    return int(length)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _one(element: bytes) -> bytes:
    return struct.pack(">i", 1) + element
