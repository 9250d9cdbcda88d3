"""Enforces client quotas: in front of the handlers, and only while the broker has quotas (KIP-219).

A response is sent as soon as it is there, with the time for which the client is throttled, and the connection
is not read for that time. Bytes in are those of Produce requests, bytes out those of responses to Fetch and
ShareFetch, as in Apache Kafka. Request time is that of the event loop: 100 % is one processor, and Kafka's is
the sum of its threads.

A Fetch that would exceed a quota is answered without records, as in Apache Kafka, and does not count. One
Fetch brings ten seconds of the quota at most. In contrast to Apache Kafka, a client that has read nothing for
that time gets a larger batch, which it could otherwise never read. A ShareFetch above the quota brings its
records, because they are acquired already, and the pause follows them.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kio.index import load_response_schema

from headrace.broker.apis import FETCH, PRODUCE, SHARE_FETCH, handle_request, has_tagged_header
from headrace.broker.handlers.produce import DelayedResponse
from headrace.broker.security.quotas import BURST_SECONDS, MAX_REQUEST_THROTTLE_MS
from headrace.broker.security.sasl import ANONYMOUS, USER
from headrace.protocol.requests import is_flexible, read_request_header
from headrace.storage.memory_log import MemoryRange
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.security.quotas import ClientLimits
    from headrace.protocol.requests import RequestHeader

NOT_THROTTLED: Final = frozenset({17, 36})
"""SaslHandshake and SaslAuthenticate."""
MAX_THROTTLE_MS: Final = 2**31 - 1
PERCENT_OF_NS: Final = 1e-7
"""Nanoseconds in a second, as a percentage."""

FIXED_SIZES: Final = {"error_code": 2, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
"""The sizes of fields that may be in front of the throttle time."""

_INT32 = struct.Struct(">i")


def respond_within_quotas(broker: Broker, frame: memoryview, peer: Connection) -> Any:
    """Like `handle_request`, and throttles the client if it has used more than its quota."""
    header = read_request_header(frame, has_tagged_header)
    user = ANONYMOUS if peer.access is None else peer.access.principal
    limits = broker.security.quotas.limits(user.removeprefix(USER), header.client_id)
    if limits is None or header.api_key in NOT_THROTTLED:
        return handle_request(broker, frame, peer)
    if header.api_key == FETCH and limits.fetch is not None:
        _limit_fetch(frame, header, limits.fetch.value)
    request = _MeasuredRequest(broker, header, limits, peer, len(frame))
    return request.take(request.run(handle_request, broker, frame, peer, request))


class _MeasuredRequest:
    """A request whose size and time count."""

    __slots__ = (
        "_admitted_bytes",
        "_began_ns",
        "_broker",
        "_elapsed_ns",
        "_fetch_throttle_ms",
        "_header",
        "_limits",
        "_peer",
        "_request_bytes",
    )

    def __init__(
        self, broker: Broker, header: RequestHeader, limits: ClientLimits, peer: Connection, size: int
    ) -> None:
        self._broker = broker
        self._header = header
        self._limits = limits
        self._peer = peer
        self._request_bytes = size
        self._elapsed_ns = 0
        self._began_ns = 0
        """When the function that runs was called; 0 if none runs."""
        self._admitted_bytes = 0
        """Bytes of records that are counted before the response is complete."""
        self._fetch_throttle_ms: float | None = None
        """For how long a Fetch is throttled, once that is decided."""

    def run(self, function: Any, *arguments: Any) -> Any:
        """Call a function, and measure how long it takes."""
        self._began_ns = time.perf_counter_ns()
        try:
            return function(*arguments)
        finally:
            self._elapsed_ns += time.perf_counter_ns() - self._began_ns
            self._began_ns = 0

    def take(self, result: Any) -> Any:
        """What the connection gets in place of a handler's result."""
        if result is None or isinstance(result, bytes | list):
            return self._finish(result)
        if isinstance(result, asyncio.Future):
            return self._follow(result)
        if isinstance(result, DelayedResponse):
            return DelayedResponse(self._complete(result), result.held_bytes)
        return self._complete(result)

    async def _complete(self, response: Awaitable[Any]) -> Any:
        return self.take(await _Steps(self, response))

    def _follow(self, future: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """A future of the throttled response; to cancel it cancels what it follows."""
        followed: asyncio.Future[Any] = self._broker.loop.create_future()

        def done(source: asyncio.Future[Any]) -> None:
            if followed.cancelled():
                return
            fault = None if source.cancelled() else source.exception()
            if source.cancelled():
                followed.cancel()
            elif fault is not None:
                followed.set_exception(fault)
            else:
                followed.set_result(self._finish(source.result()))

        future.add_done_callback(done)
        followed.add_done_callback(lambda _: future.cancel() if followed.cancelled() else None)
        return followed

    def _finish(self, response: bytes | list[object] | None) -> list[object] | None:
        chunks: list[object] = [response] if isinstance(response, bytes) else response or []
        throttle_ms = self._charge(chunks)
        if throttle_ms > 0:
            self._peer.mute(throttle_ms)
            if chunks:
                chunks[0] = _with_throttle_time(chunks[0], self._header, throttle_ms)
        return chunks or None

    def admit_fetch(self, records_bytes: int) -> bool:
        """Whether a Fetch may bring these bytes now; if so, they count as used."""
        now_ms = self._broker.clock.now_ms()
        if self._began_ns:
            now_ns = time.perf_counter_ns()
            self._elapsed_ns += now_ns - self._began_ns
            self._began_ns = now_ns
        throttle_ms = self._charge_time(now_ms)
        fetch = self._limits.fetch
        if fetch is not None:
            if throttle_ms <= 0 and fetch.admit(records_bytes, now_ms):
                self._admitted_bytes = records_bytes
            else:
                throttle_ms = max(throttle_ms, fetch.excess_ms(records_bytes, now_ms))
        self._fetch_throttle_ms = throttle_ms
        return throttle_ms <= 0

    def _charge(self, chunks: list[object]) -> int:
        """Record what the request has used; returns how long the client is throttled, in milliseconds."""
        now_ms, limits = self._broker.clock.now_ms(), self._limits
        throttle_ms = self._charge_time(now_ms)
        if limits.produce is not None and self._header.api_key == PRODUCE:
            throttle_ms = max(throttle_ms, limits.produce.charge(self._request_bytes, now_ms))
        if self._fetch_throttle_ms:
            throttle_ms = self._fetch_throttle_ms
        elif limits.fetch is not None and self._header.api_key in (FETCH, SHARE_FETCH):
            charged_ms = limits.fetch.charge(sum(map(_size, chunks)) - self._admitted_bytes, now_ms)
            # Records that were admitted are sent: what surrounds them delays the next fetch.
            throttle_ms = max(throttle_ms, charged_ms) if self._fetch_throttle_ms is None else 0.0
        return min(round(throttle_ms), MAX_THROTTLE_MS)

    def _charge_time(self, now_ms: float) -> float:
        """Record the time since it was last recorded; returns for how long that throttles the client."""
        elapsed_ns, self._elapsed_ns = self._elapsed_ns, 0
        if self._limits.request is None:
            return 0.0
        return min(self._limits.request.charge(elapsed_ns * PERCENT_OF_NS, now_ms), MAX_REQUEST_THROTTLE_MS)


def _size(chunk: Any) -> int:
    return chunk.size if isinstance(chunk, FileRange | MemoryRange) else len(chunk)


class _Steps:
    """An awaitable whose steps on the event loop are measured, and the time between them is not."""

    def __init__(self, request: _MeasuredRequest, response: Awaitable[Any]) -> None:
        self._request = request
        self._response = response

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._response.__await__()
        run = self._request.run
        try:
            waits_for = run(next, steps)
            while True:
                try:
                    sent = yield waits_for
                except BaseException as fault:  # noqa: BLE001  the handler decides what a cancellation means
                    waits_for = run(steps.throw, fault)
                else:
                    waits_for = run(steps.send, sent)
        except StopIteration as end:
            return end.value


def _limit_fetch(frame: memoryview, header: RequestHeader, rate: float) -> None:
    """Let a Fetch ask for no more than ten seconds of the quota: its `max_bytes` is changed in place."""
    position = header.body + (12 if header.version < 15 else 8)
    if position + _INT32.size <= len(frame):
        (wanted,) = _INT32.unpack_from(frame, position)
        _INT32.pack_into(frame, position, min(wanted, max(int(rate * BURST_SECONDS), 1)))


def _with_throttle_time(chunk: object, header: RequestHeader, throttle_ms: int) -> object:
    position = throttle_position(header.api_key, header.version)
    if position is None or not isinstance(chunk, bytes):
        return chunk
    changed = bytearray(chunk)
    _INT32.pack_into(changed, position if position >= 0 else len(changed) + position, throttle_ms)
    return bytes(changed)


@cache
def throttle_position(api_key: int, version: int) -> int | None:
    """Where the throttle time is in a response, from its end if negative; None if it has none.

    It is the first field of most responses, or comes after an error code. In those of Produce it is the last
    one. That of ApiVersions, after an array, stays 0: the connection is muted all the same.
    """
    tags = 1 if is_flexible(api_key, version) else 0
    if api_key == PRODUCE:
        return -_INT32.size - tags
    position = 2 * _INT32.size + tags
    for field in fields(load_response_schema(api_key, version)):
        if field.name == "throttle_time":
            return position
        size = FIXED_SIZES.get(field.metadata.get("kafka_type", ""))
        if size is None:
            return None
        position += size
    return None
