"""A broker that answers as a test tells it to: for what a real one does only once in a blue moon.

It keeps the log of one partition, as a list of batches, and has a fate for each Fetch or Produce, in turn;
when the fates are used up it behaves well.
"""

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from uuid import UUID

from headrace.client.bootstrap import Address
from headrace.protocol.batch import place_batch, read_header
from headrace.protocol.fetch import FetchResponse, PartitionData, read_fetch
from headrace.protocol.produce import PartitionResult, pack_produce_response, read_produce
from headrace.protocol.requests import RequestHeader, is_flexible, read_request_header
from headrace.protocol.responses import write_response

TOPIC = "topic"
TOPIC_ID = UUID(int=7)
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
SERVED = {PRODUCE: 9, FETCH: 12, METADATA: 10, API_VERSIONS: 0}
OFFSET_OUT_OF_RANGE, OUT_OF_ORDER = 1, 45


class Fate(NamedTuple):
    """How one request is handled: whether it is executed, and the client's response."""

    code: int = 0
    is_stored: bool = True
    is_answered: bool = True
    is_empty: bool = False
    throttle_ms: int = 0


class HangUp(Exception):
    """The connection is to end without an answer."""


class ScriptedBroker:
    """One partition and its fates."""

    def __init__(self, fates: Iterable[Fate] = ()) -> None:
        self.fates = deque(fates)
        self.log: list[bytes] = []
        self.end = 0
        self.sequence = 0
        self.leader: Address | None = None
        self.asked: list[int] = []
        self.lock = threading.Lock()

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """The offset at which a batch was stored."""
        stored = bytearray(batch)
        base = self.end
        place_batch(stored, base, 0)
        self.log.append(bytes(stored))
        self.end = read_header(stored).next_offset
        return base

    def answer(self, frame: memoryview, address: Address) -> bytes:
        """The whole answer to a request."""
        header = read_request_header(frame, is_flexible)
        with self.lock:
            self.asked.append(header.api_key)
            if header.api_key == API_VERSIONS:
                keys = [{"api_key": k, "min_version": v, "max_version": v} for k, v in SERVED.items()]
                return write_response(
                    API_VERSIONS, 0, header.correlation_id, {"error_code": 0, "api_keys": keys}
                )
            if header.api_key == METADATA:
                return self._describe(header, self.leader or address)
            fate = self.fates.popleft() if self.fates else Fate()
            if header.api_key == FETCH:
                return self._fetch(frame, header, fate)
            return self._produce(frame, header, fate)

    def _describe(self, header: RequestHeader, leader: Address) -> bytes:
        partition = {"error_code": 0, "partition_index": 0, "leader_id": 1}
        topic = {"error_code": 0, "name": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}
        brokers = [{"node_id": 1, "host": leader.host, "port": leader.port}]
        body = {"brokers": brokers, "controller_id": 1, "topics": [topic]}
        return write_response(METADATA, 10, header.correlation_id, body)

    def _fetch(self, frame: memoryview, header: RequestHeader, fate: Fate) -> bytes:
        wanted = read_fetch(frame, header.body, header.version).topics[0].partitions[0].offset
        left = [each for each in self.log if read_header(each).next_offset > wanted]
        records = left[0] if left and not fate.is_empty and not fate.code else b""
        response = FetchResponse(header.version, header.correlation_id)
        response.begin(0, 0, 1)
        response.begin_topic(TOPIC, 1)
        data = PartitionData(0, fate.code, self.end, self.end, 0, (), len(records))
        response.add_partition(data, memoryview(records))
        response.end_topic()
        if not fate.is_answered:
            raise HangUp
        whole = bytearray(b"".join(bytes(chunk) for chunk in response.finish()))  # type: ignore[call-overload]
        struct.pack_into(">i", whole, 9, fate.throttle_ms)
        return bytes(whole)

    def _produce(self, frame: memoryview, header: RequestHeader, fate: Fate) -> bytes:
        ((_, ((_, batch),)),) = read_produce(frame, header.body, header.version).topics
        assert batch is not None
        code, base = fate.code, -1
        if fate.is_stored:
            code, base = self._store(batch)
        if not fate.is_answered:
            raise HangUp
        result = PartitionResult(0, fate.code or code, base)
        return pack_produce_response(header.version, header.correlation_id, [(TOPIC, [result])])

    def _store(self, batch: memoryview) -> tuple[int, int]:
        """As Kafka does with numbered batches: a duplicate is a success, a hole is refused."""
        header = read_header(batch)
        if header.base_sequence >= 0:
            if header.base_sequence < self.sequence:
                return 0, -1
            if header.base_sequence > self.sequence and self.sequence:
                return OUT_OF_ORDER, -1
            self.sequence = header.base_sequence + header.count
        return 0, self.append(batch)


@contextmanager
def serving(broker: ScriptedBroker) -> Iterator[Address]:
    """The address at which `broker` answers, each connection in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address(host="127.0.0.1", port=server.getsockname()[1])
        threads: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

        def serve(connection: socket.socket) -> None:
            with connection, connection.makefile("rb") as stream:
                while size := stream.read(4):
                    frame = memoryview(stream.read(int.from_bytes(size, "big")))
                    try:
                        connection.sendall(broker.answer(frame, address))
                    except (HangUp, OSError):
                        return

        threads.append(threading.Thread(target=accept))
        threads[0].start()
        try:
            yield address
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
