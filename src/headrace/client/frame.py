"""Kafka's messages as frames: four bytes of length, a header, a body."""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from headrace.client.errors import BadResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from kio.static.protocol import RequestPayload, ResponsePayload

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
