"""Counts the requests of each API, their times and errors, and logs slow ones.

A request is timed from its arrival to its complete response. The time includes what it waits for: records for
a Fetch, a rebalance for a JoinGroup, room in a full topic for a Produce. Such a wait is not slow, so the slow
log times only the work of APIs that wait by design.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map

from headrace.metrics.families import LATENCY_BOUNDS_S, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger("headrace.broker.slow_requests")

WAITING: Final = frozenset({1, 11, 14, 78})
"""Fetch, JoinGroup, SyncGroup and ShareFetch: a response may wait for other clients."""
SHORT_S: Final = LATENCY_BOUNDS_S[0]
MAX_ITEMS: Final = 200
"""Items of a response that are searched for errors."""


class RequestMetrics:
    """The requests of all connections. Keys of APIs are below 256; unknown ones close the connection."""

    __slots__ = ("_slow_s", "errors", "latencies")

    def __init__(self, slow_ms: int | None = None) -> None:
        self._slow_s = math.inf if slow_ms is None else slow_ms / 1000
        self.latencies = [Histogram() for _ in range(256)]
        self.errors: Counter[tuple[int, int]] = Counter()
        """Errors in responses, by API and error code."""

    def completed(self, api_key: int, seconds: float, host: str) -> None:
        """Count a request whose response is complete."""
        latency = self.latencies[api_key]
        if seconds <= SHORT_S:  # most requests: no search for their bucket
            latency.counts[0] += 1
            latency.sum += seconds
        else:
            latency.observe(seconds)
        if seconds >= self._slow_s and api_key not in WAITING:
            self._log_slow(api_key, seconds, host)

    def handled(self, api_key: int, seconds: float, host: str) -> None:
        """The first part of a request that then waits is done."""
        if seconds >= self._slow_s and api_key in WAITING:
            self._log_slow(api_key, seconds, host)

    def failed(self, api_key: int, code: int) -> None:
        """Count an error in a response."""
        self.errors[api_key, code] += 1

    def count_errors(self, api_key: int, body: Any) -> None:
        """Count the errors in the fields of a response, and in those of its items."""
        for code in _error_codes(body):
            self.errors[api_key, code] += 1

    def _log_slow(self, api_key: int, seconds: float, host: str) -> None:
        log.warning(
            "slow request: %s of %s took %.1f ms",
            api_name(api_key),
            host,
            seconds * 1000,
            extra={"api": api_name(api_key), "client_host": host, "duration_ms": round(seconds * 1000, 3)},
        )


def _error_codes(body: Mapping[str, Any]) -> Iterator[int]:
    for name, value in body.items():
        if name == "error_code":
            if value:
                yield int(value)
        elif isinstance(value, list | tuple):
            for item in value[:MAX_ITEMS]:
                if isinstance(item, dict):
                    yield from _error_codes(item)


@cache
def api_name(api_key: int) -> str:
    """Kafka's name of an API: `InitProducerId`."""
    name = api_key_map.get(api_key)
    return "Unknown" if name is None else "".join(word.capitalize() for word in name.split("_"))


def error_name(code: int) -> str:
    """Kafka's name of an error code: `NOT_COORDINATOR`."""
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)
