"""A Kafka client of nothing but a socket: it sends what a test says, also what no real client would."""

import io
import itertools
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from headrace.protocol.records import NewRecord, encode_batch
from headrace.protocol.requests import API_VERSIONS
from tests.protocol.entities import build

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 19, 20, 22
DEADLINE_SECONDS = 100.0
NO_CLIENT_ID = -1

_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")


class ConnectionEnded(Exception):
    """The broker closed the connection."""


def frame(payload: bytes) -> bytes:
    """A payload behind its length, as it goes over the wire."""
    return _SIZE.pack(len(payload)) + payload


def pack_request(api_key: int, version: int, entity: object, correlation_id: int = 1) -> bytes:
    """A whole request without its length; `entity` is kio's, of that API and version."""
    schema = load_request_schema(api_key, version)
    buffer = io.BytesIO()
    buffer.write(_HEADER.pack(api_key, version, correlation_id, NO_CLIENT_ID))
    if schema.__flexible__:
        buffer.write(b"\0")
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


def read_response(api_key: int, version: int, payload: bytes) -> tuple[int, Any]:
    """The correlation id of a response, and kio's entity of that API and version."""
    schema = load_response_schema(api_key, version)
    has_tags = schema.__flexible__ and api_key != API_VERSIONS
    entity, size = entity_reader(schema)(payload, 5 if has_tags else 4)
    assert size == len(payload) - (5 if has_tags else 4), "the answer has bytes that do not belong to it"
    return _SIZE.unpack_from(payload)[0], entity


def batch_of(
    *values: bytes, key: bytes | None = None, timestamp: int = 1_700_000_000_000, **more: Any
) -> bytes:
    """A record batch with these values; `more` goes to `encode_batch`."""
    return bytes(encode_batch([NewRecord(key, value, timestamp) for value in values], **more))


class WireClient:
    """One connection. Answers come in the order of the requests, and are checked to do so."""

    def __init__(self, address: str, *, receive_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(DEADLINE_SECONDS)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ids = itertools.count(1)
        self._awaited: list[tuple[int, int, int]] = []

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    # ---------------------------------------------------------------- requests

    def send_bytes(self, data: bytes) -> None:
        """Send anything at all."""
        self.socket.sendall(data)

    def pack(self, api_key: int, version: int, **fields: Any) -> bytes:
        """A request as it goes over the wire; its answer is to be received in its turn."""
        correlation_id = next(self._ids)
        self._awaited.append((api_key, version, correlation_id))
        entity = build(load_request_schema(api_key, version), fields)
        return frame(pack_request(api_key, version, entity, correlation_id))

    def send(self, api_key: int, version: int, **fields: Any) -> None:
        """Send a request; its answer is to be received in its turn."""
        self.send_bytes(self.pack(api_key, version, **fields))

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        api_key, version, correlation_id = self._awaited.pop(0)
        answered, entity = read_response(api_key, version, self.receive_frame())
        assert answered == correlation_id, f"request {answered} was answered, and {correlation_id} was next"
        return entity

    def receive_frame(self) -> bytes:
        """The next answer without its length, or `ConnectionEnded`."""
        (size,) = _SIZE.unpack(self.receive_bytes(_SIZE.size))
        return self.receive_bytes(size)

    def receive_bytes(self, size: int) -> bytes:
        """Exactly that many bytes, or `ConnectionEnded`."""
        data = bytearray()
        while len(data) < size:
            try:
                received = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError as fault:
                raise ConnectionEnded from fault
            if not received:
                raise ConnectionEnded
            data += received
        return bytes(data)

    def has_answer(self, seconds: float = 0) -> bool:
        """Whether bytes, or the end of the connection, arrive within the time."""
        return bool(select.select([self.socket], [], [], seconds)[0])

    def is_ended(self) -> bool:
        """Whether the broker closes the connection instead of answering; waits for one or the other."""
        try:
            return not self.socket.recv(1)
        except ConnectionError:
            return True

    def ask(self, api_key: int, version: int, **fields: Any) -> Any:
        """Send a request and give its answer."""
        self.send(api_key, version, **fields)
        return self.receive()

    # ---------------------------------------------------------------- what most tests need

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> Any:
        """The answer to the creation of one topic; a setting's dots are written as underscores."""
        settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        answer = self.ask(
            CREATE_TOPICS,
            7,
            topics=[topic | {"assignments": (), "configs": settings}],
            timeout=10_000,
            validate_only=False,
        )
        return answer.topics[0]

    def produce(self, topic: str, batch: bytes | None, partition: int = 0, **more: Any) -> Any:
        """The result of one batch."""
        self.send_produce(topic, batch, partition, **more)
        return self.receive().responses[0].partition_responses[0]

    def send_produce(
        self,
        topic: str,
        batch: bytes | None,
        partition: int = 0,
        *,
        version: int = 9,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> None:
        """Send a Produce request with one batch."""
        data = {"name": topic, "partition_data": [{"index": partition, "records": batch}]}
        request = {
            "transactional_id": transactional_id,
            "acks": acks,
            "timeout": 30_000,
            "topic_data": [data],
        }
        self.send(PRODUCE, version, **request)
        if acks == 0:
            self._awaited.pop()

    def fetch(self, partitions: Mapping[tuple[str, int], int], **more: Any) -> Any:
        """The whole answer to a fetch of these partitions from these offsets."""
        self.send_fetch(partitions, **more)
        return self.receive()

    def send_fetch(self, partitions: Mapping[tuple[str, int], int], **more: Any) -> None:
        """Send a fetch of these partitions from these offsets."""
        self.send_bytes(self.pack_fetch(partitions, **more))

    def pack_fetch(
        self,
        partitions: Mapping[tuple[str, int], int],
        *,
        version: int = 12,
        max_wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 2**31 - 1,
        partition_bytes: int = 2**20,
        isolation_level: int = 0,
        session: tuple[int, int] = (0, -1),
        forgotten: Sequence[tuple[str, int]] = (),
        leader_epoch: int = -1,
    ) -> bytes:
        """A fetch as it goes over the wire; `max_wait` is in milliseconds, `session` an id and an epoch."""
        topics = [
            {"topic": topic, "partitions": [_partition(index, offset, partition_bytes, leader_epoch)]}
            for (topic, index), offset in partitions.items()
        ]
        return self.pack(
            FETCH,
            version,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
            forgotten_topics_data=[{"topic": topic, "partitions": [index]} for topic, index in forgotten],
            rack_id="",
        )

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The high watermark of a partition."""
        wanted = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
        answer = self.ask(
            LIST_OFFSETS,
            6,
            replica_id=-1,
            isolation_level=0,
            topics=[{"name": topic, "partitions": [wanted]}],
        )
        found = answer.topics[0].partitions[0]
        assert found.error_code is ErrorCode.none, found.error_code
        return int(found.offset)


def _partition(index: int, offset: int, max_bytes: int, leader_epoch: int) -> Mapping[str, int]:
    return {
        "partition": index,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
