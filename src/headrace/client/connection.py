"""A blocking connection to one broker.

    with Connection.open("127.0.0.1", 9092) as connection:
        response = connection.request(ListTransactionsRequest(...), ListTransactionsResponse)

Requests and responses are kio's entities, which have an API key and a version. ApiVersions is requested when
the connection opens, and a version that the broker does not serve raises `UnsupportedApi`. The size of frames
is bounded, and every wait has a timeout.

Messages that carry records are encoded by hand and pipelined: `send` returns a correlation id, and `receive`
returns the response to it. Brokers respond in order, so responses that arrive earlier are kept for their
callers.

One thread uses a connection at a time. Concurrent requests of two threads would have the same correlation id,
so the second thread gets an error.
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

from headrace.client.bootstrap import PLAINTEXT
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

    from headrace.client.authentication import SaslSession
    from headrace.errors import HeadraceError
    from headrace.protocol.compression import Bytes

FIRST_REQUEST: Final = 2
"""The correlation id of the request after ApiVersions."""
LENGTH: Final = struct.Struct(">i")
CORRELATION: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ihhih")
_NO_TAGS: Final = b"\0"

Response = TypeVar("Response", bound="ResponsePayload")


def encode_request(request: RequestPayload, correlation_id: int, client_id: str) -> bytes:
    """The frame of a request, including its length prefix."""
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


def encode_flexible_header(
    api_key: int, version: int, correlation_id: int, client_id: str, body_bytes: int
) -> bytes:
    """The length prefix and the header before an encoded body of `body_bytes`."""
    name = client_id.encode()
    size = _HEADER.size - LENGTH.size + len(name) + len(_NO_TAGS) + body_bytes
    return _HEADER.pack(size, api_key, version, correlation_id, len(name)) + name + _NO_TAGS


def decode_response(frame: bytes, response_type: type[Response]) -> Response:
    """Decode a frame without its length prefix."""
    entity: Any = response_type
    try:
        _, start = _reader(entity.__header_schema__)(frame, 0)
        response, size = _reader(entity)(frame, start)
    except (SerialError, ValueError, IndexError, OverflowError) as fault:
        raise BadResponse(f"{response_type.__name__} cannot be decoded: {fault}") from fault
    if start + size != len(frame):
        raise BadResponse(f"{response_type.__name__} is followed by {len(frame) - start - size} bytes")
    return cast("Response", response)


# kio builds readers and writers from the fields of an entity: once per type.
@cache
def _reader(entity: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(entity)


@cache
def _writer(entity: Any) -> Callable[[io.BytesIO, Any], None]:
    return entity_writer(entity)


MAX_FRAME_BYTES: Final = 64 << 20
"""The longest response: a longer one is from a server that does not speak Kafka."""
MAX_RECORDS_BYTES: Final = 1 << 30
"""The longest response with records: a batch may be as large as its topic allows."""
TLS_ALERT: Final = 0x1503
"""The first bytes that a TLS listener sends to a client without TLS: type and version of an alert."""
MAX_PARTS: Final = 512
"""Buffers in one system call; the limit of Linux is 1,024."""


class Connection:
    """A blocking connection to a broker. For one thread at a time."""

    def __init__(self, peer: socket.socket, *, name: str, client_id: str) -> None:
        self._socket = peer
        self._in_use = threading.RLock()
        self._name = name
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, range] = {}
        self._pending: deque[int] = deque()
        self._responses: dict[int, bytearray] = {}
        self._discarded: set[int] = set()
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._session: SaslSession | None = None

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        *,
        profile: str = PLAINTEXT,
        client_id: str = "headrace",
        timeout_s: float = 10.0,
    ) -> Self:
        """Connect, and request the versions that the broker serves; `timeout_s` holds for each request.

        `profile` is the name of the security profile.
        """
        name = f"{host}:{port}"
        try:
            peer = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise BrokerUnreachable(f"no broker responds at {name}: {error}") from error
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if profile != PLAINTEXT:
            from headrace.client.authentication import secure_socket

            peer = secure_socket(peer, host, name, profile)
        connection = cls(peer, name=name, client_id=client_id)
        try:
            connection._negotiate()
            if profile != PLAINTEXT:
                connection._authenticate(profile)
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
        """Whether requests can be sent."""
        return self._socket.fileno() >= 0

    def request(self, request: RequestPayload, response_type: type[Response]) -> Response:
        """Send a request and return its response; the caller checks its error codes."""
        if not self.serves(type(request)):
            raise UnsupportedApi(self._unsupported_request(request))
        self._renew_session()
        return self._exchange(request, response_type)

    def serves(self, request_type: type[RequestPayload]) -> bool:
        """Whether the broker serves this API in this version."""
        return request_type.__version__ in self._versions.get(request_type.__api_key__, ())

    def send(self, api_key: int, version: int, body: Sequence[Bytes]) -> int:
        """Send a flexible request with the parts of an encoded body; returns its correlation id."""
        if version not in self._versions.get(api_key, ()):
            raise UnsupportedApi(self._unsupported(f"API {api_key}", api_key, version))
        self._renew_session()
        self._max_frame_bytes = MAX_RECORDS_BYTES
        size = sum(len(part) for part in body)
        with self._exclusive():
            correlation_id = self._correlation_id + 1
            header = encode_flexible_header(api_key, version, correlation_id, self._client_id, size)
            self._send([header, *body])
        return correlation_id

    def receive(self, correlation_id: int) -> memoryview:
        """The response to a request that was sent, from its correlation id on."""
        with self._exclusive():
            while correlation_id not in self._responses:
                if correlation_id not in self._pending:
                    raise BrokerUnreachable(f"the response of {self._name} was lost with the connection")
                self._receive_next()
            return memoryview(self._responses.pop(correlation_id))

    def discard(self, correlation_id: int) -> None:
        """Ignore the response to a request that was sent."""
        if self._responses.pop(correlation_id, None) is None and correlation_id in self._pending:
            self._discarded.add(correlation_id)

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._socket.close()
        self._pending.clear()
        self._discarded.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _negotiate(self) -> None:
        # Every broker answers version 0; newer versions only add fields.
        response = self._exchange(ApiVersionsRequest(), ApiVersionsResponse)
        if response.error_code is not ErrorCode.none:
            raise RequestRefused("list its APIs", response.error_code)
        for api in response.api_keys:
            self._versions[api.api_key] = range(api.min_version, api.max_version + 1)

    def _authenticate(self, profile: str) -> None:
        from headrace.client.authentication import open_session

        self._session = open_session(profile, self._name, self._exchange)

    def _renew_session(self) -> None:
        """Authenticate again if the broker would soon refuse requests on this connection (KIP-368)."""
        if self._session is not None and self._session.is_due:
            try:
                self._session.authenticate()
            except BaseException:
                self.close()
                raise

    def _exchange(self, request: RequestPayload, response_type: type[Response]) -> Response:
        with self._exclusive():
            correlation_id = self._correlation_id + 1
            self._send([encode_request(request, correlation_id, self._client_id)])
            return decode_response(bytes(self.receive(correlation_id)), response_type)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Raise `ConnectionShared` if another thread is sending or receiving."""
        if not self._in_use.acquire(blocking=False):
            raise ConnectionShared(
                f"two threads use the connection to {self._name} at the same time: "
                "use a Cluster for each thread."
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
            self.close()  # after a part of a request no other can follow
            raise
        self._pending.append(self._correlation_id)

    def _send_all(self, parts: Sequence[Bytes]) -> None:
        sent = self._socket.sendmsg(parts)
        for part in parts:
            if sent < len(part):
                self._socket.sendall(memoryview(part)[sent:])
            sent = max(sent - len(part), 0)

    def _receive_next(self) -> None:
        try:
            frame = self._read_frame()
        except OSError as fault:
            raise self._lost(fault) from fault
        except BaseException:
            self.close()  # the rest of the frame would be read as the next response
            raise
        (correlation_id,) = CORRELATION.unpack_from(frame)
        expected = self._pending.popleft()
        if correlation_id != expected:
            self.close()
            raise BadResponse(f"a response to request {correlation_id} arrived instead of {expected}")
        if correlation_id in self._discarded:
            self._discarded.remove(correlation_id)
        else:
            self._responses[correlation_id] = frame

    def _lost(self, fault: OSError) -> HeadraceError:
        self.close()
        if "ALERT" in str(getattr(fault, "reason", "")):  # of TLS: the broker does not accept the client
            from headrace.client.authentication import tls_failure

            return tls_failure(self._name, fault)
        hint = ""
        if self._session is None and self._correlation_id == FIRST_REQUEST:
            hint = ". If its listener requires SASL, connect with a security profile"
        return BrokerUnreachable(f"the broker at {self._name} stopped responding: {fault}{hint}")

    def _read_frame(self) -> bytearray:
        (size,) = LENGTH.unpack(self._read_exactly(LENGTH.size))
        if size >> 16 == TLS_ALERT:
            raise BadResponse(
                f"{self._name} expects TLS: connect with a security profile whose security.protocol is SSL "
                "or SASL_SSL (HEADRACE_SECURITY_PROFILE)."
            )
        if not CORRELATION.size <= size <= self._max_frame_bytes:
            raise BadResponse(
                f"{self._name} announces a response of {size} bytes: it does not seem to speak Kafka. "
                "Check the address."
            )
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytearray:
        # Pages of new memory are allocated on first write: a wrong length costs nothing.
        buffer = bytearray(size)
        rest = memoryview(buffer)
        while rest:
            received = self._socket.recv_into(rest)
            if not received:
                raise ConnectionError("it closed the connection")
            rest = rest[received:]
        return buffer

    def _unsupported_request(self, request: RequestPayload) -> str:
        name = type(request).__name__.removesuffix("Request")
        return self._unsupported(name, request.__api_key__, request.__version__)

    def _unsupported(self, name: str, api_key: int, version: int) -> str:
        served = self._versions.get(api_key)
        versions = (
            f"it serves {served.start} to {served.stop - 1}" if served else "it does not serve it at all"
        )
        return (
            f"{self._name} does not serve version {version} of {name} ({versions}). "
            "Use Headrace, or Apache Kafka 3.0 or later."
        )
