"""The head of an HTTP request, read with suspicion: bounded, in time, and refused when it is not plain."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
LONGEST_LINE: Final = 8_000
MOST_FIELDS: Final = 100
THIS_MACHINE: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Refused(HeadraceError):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asked for."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case."""

    def check_host(self, *, any_host: bool) -> None:
        """Refuse a request that was meant for another host than this machine."""
        host = self.headers.get("host", "localhost").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not any_host and name not in THIS_MACHINE:
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, "only requests for localhost are answered here")


async def read_head(reader: asyncio.StreamReader, *, within_s: float) -> Request:
    """The request that a client sends, or `Refused`; one that says nothing in time is an error of time."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), within_s)
    except asyncio.LimitOverrunError:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long") from None
    except asyncio.IncompleteReadError:
        raise ConnectionError("the client left in the middle of its request") from None
    return parse_head(head)


def parse_head(head: bytes) -> Request:
    """The request in the bytes of a head.

    >>> parse_head(b"GET /changes/a%20b?since=x HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n").path
    '/changes/a b'
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = LINE.fullmatch(first)
    if line is None or len(first) > LONGEST_LINE:
        raise Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    if line[1] != b"GET":
        raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is served here")
    headers = _headers(lines)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "a request with a body is not served here")
    try:
        target = urlsplit(line[2].decode())
        query = dict(parse_qsl(target.query, max_num_fields=20))
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "the address cannot be read") from None
    return Request(path=unquote(target.path), query=query, headers=headers)


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    if len(lines) > MOST_FIELDS:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request has too many headers")
    for line in lines:
        found = FIELD.fullmatch(line)
        if found is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "a header cannot be read")
        headers[found[1].decode().lower()] = found[2].decode("latin-1")
    return headers
