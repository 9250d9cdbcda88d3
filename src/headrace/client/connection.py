"""One connection to one broker: a request goes out, its response comes back.

    with Connection.open("127.0.0.1", 9092) as connection:
        response = connection.ask(ListTransactionsRequest(...), ListTransactionsResponse)

Requests and responses are kio's entities, which carry their API key and version. What the broker serves is
asked once, when the connection opens; a version that it does not serve is refused here, with an explanation,
instead of ending in a closed socket. Frames are bounded, and every wait has a deadline.

The two messages that carry records, Produce and Fetch, are packed by hand and go out ahead of the answers to
those before them: `post` sends one and returns its ticket, `collect` gives the answer of a ticket. A broker
answers in order, so whatever arrives before the wanted answer is kept for whoever asks for it.

A connection may pass from thread to thread, but one thread uses it at a time. Two threads that send at once
would give their requests the same correlation id, and each could take the other's answer for its own. So the
second one is refused, and the first one gets its answer.
"""

from __future__ import annotations

import io
import socket
import struct
import threading
from collections import deque
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from headrace.client.errors import (
    BadResponse,
    BrokerUnreachable,
    ConnectionShared,
    RequestRefused,
    UnsupportedApi,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from kio.static.protocol import RequestPayload, ResponsePayload

    from headrace.protocol.compression import Bytes

LENGTH: Final = struct.Struct(">i")
CORRELATION: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ihhih")
_NO_TAGS: Final = b"\0"

Response = TypeVar("Response", bound="ResponsePayload")


def write_request(request: RequestPayload, correlation_id: int, client_id: str) -> bytes:
    """The frame of a request, length prefix included."""
    header_type: Any = type(request).__header_schema__
    header = header_type(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    buffer = io.BytesIO()
    buffer.write(LENGTH.pack(0))
    _writer(header_type)(buffer, header)
    _writer(type(request))(buffer, request)
    LENGTH.pack_into(buffer.getbuffer(), 0, buffer.tell() - LENGTH.size)
    return buffer.getvalue()


def write_flexible_header(
    api_key: int, version: int, correlation_id: int, client_id: str, body_bytes: int
) -> bytes:
    """The length prefix and the header before a body of `body_bytes` that was packed by hand."""
    name = client_id.encode()
    size = _HEADER.size - LENGTH.size + len(name) + len(_NO_TAGS) + body_bytes
    return _HEADER.pack(size, api_key, version, correlation_id, len(name)) + name + _NO_TAGS


def read_response(frame: bytes, response_type: type[Response]) -> Response:
    """The response in a frame whose length prefix has been taken off; the whole frame must be used."""
    entity: Any = response_type
    try:
        _, start = _reader(entity.__header_schema__)(frame, 0)
        response, size = _reader(entity)(frame, start)
    except (SerialError, ValueError, IndexError, OverflowError) as fault:
        raise BadResponse(f"{response_type.__name__} cannot be read: {fault}") from fault
    if start + size != len(frame):
        raise BadResponse(f"{response_type.__name__} leaves {len(frame) - start - size} bytes unread")
    return cast("Response", response)


# Making a reader or a writer walks the entity's fields: once for each type is enough.
@cache
def _reader(entity: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(entity)


@cache
def _writer(entity: Any) -> Callable[[io.BytesIO, Any], None]:
    return entity_writer(entity)


MAX_FRAME_BYTES: Final = 64 << 20
"""A longer answer is taken for a peer that does not speak Kafka, and nothing is allocated for it."""
MAX_RECORDS_BYTES: Final = 1 << 30
"""The same once records are on their way: a single batch may be as large as its topic allows."""
MAX_PARTS: Final = 512
"""Buffers in one system call; Linux takes 1,024."""


class Connection:
    """A blocking connection that has agreed on versions with its broker. For one thread at a time."""

    def __init__(self, peer: socket.socket, *, name: str, client_id: str) -> None:
        self._socket = peer
        self._in_use = threading.RLock()
        self._name = name
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        self._awaited: deque[int] = deque()
        self._arrived: dict[int, bytearray] = {}
        self._forgotten: set[int] = set()
        self._max_frame_bytes = MAX_FRAME_BYTES

    @classmethod
    def open(cls, host: str, port: int, *, client_id: str = "headrace", timeout_s: float = 10.0) -> Self:
        """A connection that is ready for requests, each of which may take `timeout_s`."""
        name = f"{host}:{port}"
        try:
            peer = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as fault:
            raise BrokerUnreachable(f"no broker answers at {name}: {fault}") from fault
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = cls(peer, name=name, client_id=client_id)
        try:
            connection._negotiate()
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def name(self) -> str:
        """The address of the broker, for messages."""
        return self._name

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent; a connection that lost an answer is closed."""
        return self._socket.fileno() >= 0

    def ask(self, request: RequestPayload, response_type: type[Response]) -> Response:
        """The broker's answer to `request`; the error codes inside it are the caller's to look at."""
        if not self.serves(type(request)):
            raise UnsupportedApi(self._refusal(request))
        return self._exchange(request, response_type)

    def serves(self, request_type: type[RequestPayload]) -> bool:
        """Whether the broker serves this API in this version."""
        return request_type.__version__ in self._versions.get(request_type.__api_key__, ())

    def post(self, api_key: int, version: int, body: Sequence[Bytes]) -> int:
        """The ticket of a request that was sent; `body` is the parts of a flexible one, packed by hand."""
        if version not in self._versions.get(api_key, ()):
            raise UnsupportedApi(self._unserved(f"API {api_key}", api_key, version))
        self._max_frame_bytes = MAX_RECORDS_BYTES
        size = sum(len(part) for part in body)
        with self._exclusive():
            ticket = self._correlation_id + 1
            self._send([write_flexible_header(api_key, version, ticket, self._client_id, size), *body])
        return ticket

    def collect(self, ticket: int) -> memoryview:
        """The answer to the request of `ticket`, from its correlation id on; its memory is the caller's."""
        with self._exclusive():
            while ticket not in self._arrived:
                if ticket not in self._awaited:
                    raise BrokerUnreachable(f"the answer of {self._name} was lost with the connection")
                self._receive()
            return memoryview(self._arrived.pop(ticket))

    def forget(self, ticket: int) -> None:
        """Throw the answer to the request of `ticket` away when it comes."""
        if self._arrived.pop(ticket, None) is None and ticket in self._awaited:
            self._forgotten.add(ticket)

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._socket.close()
        self._awaited.clear()
        self._forgotten.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _negotiate(self) -> None:
        # Version 0 is the one that every broker answers; a newer one would only add fields we do not read.
        response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse)
        if response.error_code is not ErrorCode.none:
            raise RequestRefused("say which APIs it serves", response.error_code)
        for api in response.api_keys:
            self._versions[api.api_key] = range(api.min_version, api.max_version + 1)

    def _exchange(self, request: RequestPayload, response_type: type[Response]) -> Response:
        with self._exclusive():
            ticket = self._correlation_id + 1
            self._send([write_request(request, ticket, self._client_id)])
            return read_response(bytes(self.collect(ticket)), response_type)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """A block in which no other thread may send or receive."""
        if not self._in_use.acquire(blocking=False):
            raise ConnectionShared(
                f"two threads use the connection to {self._name} at once, and could take each other's "
                "answers: give each thread a Cluster of its own."
            )
        try:
            yield
        finally:
            self._in_use.release()

    def _send(self, parts: Sequence[Bytes]) -> None:
        self._correlation_id += 1
        try:
            for start in range(0, len(parts), MAX_PARTS):
                self._send_all(parts[start : start + MAX_PARTS])
        except OSError as fault:
            raise self._lost(fault) from fault
        except BaseException:
            self.close()  # half a request is on its way, and nothing can follow it
            raise
        self._awaited.append(self._correlation_id)

    def _send_all(self, parts: Sequence[Bytes]) -> None:
        sent = self._socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._socket.sendall(memoryview(part)[sent:])
            sent = max(sent - len(part), 0)

    def _receive(self) -> None:
        """Take the next answer off the wire, whoever it is for."""
        try:
            frame = self._read_frame()
        except OSError as fault:
            raise self._lost(fault) from fault
        except BaseException:
            self.close()  # what is still on its way would answer the wrong request
            raise
        (answered,) = CORRELATION.unpack_from(frame)
        expected = self._awaited.popleft()
        if answered != expected:
            self.close()
            raise BadResponse(f"an answer to request {answered} arrived instead of {expected}")
        if answered in self._forgotten:
            self._forgotten.remove(answered)
        else:
            self._arrived[answered] = frame

    def _lost(self, fault: OSError) -> BrokerUnreachable:
        self.close()
        return BrokerUnreachable(f"the broker at {self._name} stopped answering: {fault}")

    def _read_frame(self) -> bytearray:
        (size,) = LENGTH.unpack(self._read_exactly(LENGTH.size))
        if not CORRELATION.size <= size <= self._max_frame_bytes:
            raise BadResponse(
                f"{self._name} announces an answer of {size} bytes: it does not seem to speak Kafka. "
                "Check the address."
            )
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytearray:
        # Fresh zeroed memory is not there until it is written, so that a length which lies costs nothing.
        buffer = bytearray(size)
        room = memoryview(buffer)
        while room:
            received = self._socket.recv_into(room)
            if not received:
                raise ConnectionError("it closed the connection")
            room = room[received:]
        return buffer

    def _refusal(self, request: RequestPayload) -> str:
        name = type(request).__name__.removesuffix("Request")
        return self._unserved(name, request.__api_key__, request.__version__)

    def _unserved(self, name: str, api_key: int, version: int) -> str:
        served = self._versions.get(api_key)
        offer = f"it serves {served.start} to {served.stop - 1}" if served else "it does not serve it at all"
        return (
            f"{self._name} does not serve version {version} of {name} ({offer}). "
            "Use a broker that does: Headrace, or Apache Kafka 3.0 or later."
        )
