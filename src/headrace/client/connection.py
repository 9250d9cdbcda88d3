"""One connection to one broker: a request goes out, its response comes back.

    with Connection.open("127.0.0.1", 9092) as connection:
        response = connection.ask(ListTransactionsRequest(...), ListTransactionsResponse)

Requests and responses are kio's entities, which carry their API key and version. What the broker serves is
asked once, when the connection opens; a version that it does not serve is refused here, with an explanation,
instead of ending in a closed socket. Frames are bounded, and every wait has a deadline.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, Self

from kio.schema.api_versions.v0 import ApiVersionsRequest, ApiVersionsResponse
from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse, BrokerUnreachable, RequestRefused, UnsupportedApi
from headrace.client.frame import LENGTH, Response, read_response, write_request

if TYPE_CHECKING:
    from types import TracebackType

    from kio.static.protocol import RequestPayload

MAX_FRAME_BYTES: Final = 64 << 20
"""A longer answer is taken for a peer that does not speak Kafka, and nothing is allocated for it."""


class Connection:
    """A blocking connection that has agreed on versions with its broker. Not for use by several threads."""

    def __init__(self, peer: socket.socket, *, name: str, client_id: str) -> None:
        self._socket = peer
        self._name = name
        self._client_id = client_id
        self._correlation_id = 0
        self._versions: dict[int, range] = {}

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

    def ask(self, request: RequestPayload, response_type: type[Response]) -> Response:
        """The broker's answer to `request`; the error codes inside it are the caller's to look at."""
        if not self.serves(type(request)):
            raise UnsupportedApi(self._refusal(request))
        return self._exchange(request, response_type)

    def serves(self, request_type: type[RequestPayload]) -> bool:
        """Whether the broker serves this API in this version."""
        return request_type.__version__ in self._versions.get(request_type.__api_key__, ())

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._socket.close()

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
        self._correlation_id += 1
        try:
            self._socket.sendall(write_request(request, self._correlation_id, self._client_id))
            frame = self._read_frame()
        except OSError as fault:
            self.close()  # what is still on its way would answer the wrong request
            raise BrokerUnreachable(f"the broker at {self._name} stopped answering: {fault}") from fault
        return read_response(frame, response_type, self._correlation_id)

    def _read_frame(self) -> bytes:
        (size,) = LENGTH.unpack(self._read_exactly(LENGTH.size))
        if not 0 < size <= MAX_FRAME_BYTES:
            self.close()
            raise BadResponse(
                f"{self._name} announces an answer of {size} bytes: it does not seem to speak Kafka. "
                "Check the address."
            )
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytes:
        chunks = bytearray()
        while len(chunks) < size:
            # Memory grows with what arrives, not with what the length promises.
            chunk = self._socket.recv(min(size - len(chunks), 1 << 16))
            if not chunk:
                raise ConnectionError("it closed the connection")
            chunks += chunk
        return bytes(chunks)

    def _refusal(self, request: RequestPayload) -> str:
        name = type(request).__name__.removesuffix("Request")
        served = self._versions.get(request.__api_key__)
        offer = f"it serves {served.start} to {served.stop - 1}" if served else "it does not serve it at all"
        return (
            f"{self._name} does not serve version {request.__version__} of {name} ({offer}). "
            "Use a broker that does: Headrace, or Apache Kafka 3.0 or later."
        )
