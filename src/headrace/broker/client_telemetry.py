"""Metrics that clients push to the broker (KIP-714), for its own page of metrics.

A client asks what to push and how often, and then pushes OTLP metrics. Its latest values are kept until it
has been silent for a while. Nothing is kept of a client that only asks.

Everything is bounded: the size of a push before and after decompression, the pushes that wait, the clients,
and the series of one client and of all. A push is decompressed and decoded in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.metrics.families import Kind, Metric
from headrace.protocol.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor
    from uuid import UUID

    from headrace.broker.clock import BrokerClock
    from headrace.metrics.families import Scrape

MAX_PUSH_BYTES: Final = 256 * 1024
"""The largest push, compressed or not."""
MAX_DECODED_BYTES: Final = 2**20
"""The largest push after decompression."""
MAX_WAITING: Final = 32
"""Pushes that wait to be decoded, or are."""
MAX_CLIENTS: Final = 1_000
MAX_CLIENT_SERIES: Final = 1_000
MAX_SERIES: Final = 50_000
"""Series of all clients."""
MAX_LABELS: Final = 8
MAX_TEXT: Final = 128
"""Characters of a name or of the value of a label."""
SILENT_INTERVALS: Final = 3
"""After this many intervals without a push a client is removed."""
SUBSCRIPTION_ID: Final = 0x48454144
"""There is one subscription, to all metrics."""
PREFIX: Final = "org.apache.kafka."

CLIENTS = Metric(
    name="headrace_client_telemetry_clients",
    kind=Kind.GAUGE,
    doc="Clients whose pushed metrics (KIP-714) are on this page.",
)
PUSHES = Metric(
    name="headrace_client_telemetry_pushes_total",
    kind=Kind.COUNTER,
    doc="Pushes of metrics by clients.",
)
DROPPED = Metric(
    name="headrace_client_telemetry_dropped_series_total",
    kind=Kind.COUNTER,
    doc="Series that clients pushed beyond the limits.",
)
METRICS: Final = (CLIENTS, PUSHES, DROPPED)
CLIENT_LABELS: Final = ("client_instance_id", "client_id", "client_host")


class InvalidTelemetry(HeadraceError):
    """A push that holds no OTLP metrics."""


class Series(NamedTuple):
    """One pushed value."""

    name: str
    """The name on the page: `kafka_client_producer_record_send`."""
    doc: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(slots=True, kw_only=True)
class TelemetryClient:
    """A client that has pushed metrics."""

    labels: tuple[tuple[str, str], ...]
    pushed_at_ms: int
    series: list[Series] = field(default_factory=list)


class ClientTelemetry:
    """The metrics of all clients."""

    def __init__(self, clock: BrokerClock, executor: Executor, interval_ms: int) -> None:
        self.interval_ms = interval_ms
        self._clock = clock
        self._executor = executor
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._clients: OrderedDict[UUID, TelemetryClient] = OrderedDict()
        """The one that has been silent the longest comes first."""
        self._series = 0
        self._pushes = 0
        self._dropped = 0

    def is_too_early(self, instance: UUID) -> bool:
        """Whether a client pushes much more often than its interval, or too many clients push at once."""
        if self._waiting >= MAX_WAITING:
            return True
        known = self._clients.get(instance)
        return known is not None and self._clock.now_ms() - known.pushed_at_ms < self.interval_ms // 2

    async def push(self, instance: UUID, client_id: str, host: str, codec: int, data: bytes) -> None:
        """Replace the metrics of a client; raises `InvalidTelemetry` or `CorruptBatch` for other bytes."""
        self._waiting += 1
        try:
            async with self._lock:
                loop = asyncio.get_running_loop()
                series, dropped = await loop.run_in_executor(self._executor, decode, codec, data)
        finally:
            self._waiting -= 1
        self._forget_silent()
        self._remove(instance)
        if len(self._clients) >= MAX_CLIENTS:
            self._remove(next(iter(self._clients)))
        kept = series[: max(MAX_SERIES - self._series, 0)]
        values = (str(instance), _short(client_id), host)
        self._clients[instance] = TelemetryClient(
            labels=tuple(zip(CLIENT_LABELS, values, strict=True)),
            pushed_at_ms=self._clock.now_ms(),
            series=kept,
        )
        self._series += len(kept)
        self._pushes += 1
        self._dropped += dropped + len(series) - len(kept)

    def samples(self, scrape: Scrape) -> Iterator[None]:
        """Add the metrics of all clients; yields between clients."""
        self._forget_silent()
        scrape.add(CLIENTS, len(self._clients))
        scrape.add(PUSHES, self._pushes)
        scrape.add(DROPPED, self._dropped)
        families: dict[str, Metric] = {}
        for client in list(self._clients.values()):
            for each in client.series:
                metric = families.get(each.name)
                if metric is None:
                    metric = families[each.name] = Metric(name=each.name, kind=Kind.GAUGE, doc=each.doc)
                scrape.add_labeled(metric, each.value, dict(client.labels + each.labels))
            yield

    def _forget_silent(self) -> None:
        oldest_ms = self._clock.now_ms() - SILENT_INTERVALS * self.interval_ms
        while self._clients:
            instance, client = next(iter(self._clients.items()))
            if client.pushed_at_ms >= oldest_ms:
                return
            self._remove(instance)

    def _remove(self, instance: UUID) -> None:
        client = self._clients.pop(instance, None)
        if client is not None:
            self._series -= len(client.series)


def decode(codec: int, data: bytes) -> tuple[list[Series], int]:
    """The series in a push, and how many were beyond the limit."""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

    message = MetricsData()
    try:
        message.ParseFromString(bytes(decompress(codec, data, MAX_DECODED_BYTES)))
    except DecodeError as fault:
        raise InvalidTelemetry("the push holds no OTLP metrics") from fault
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
    dropped = 0
    for metric, point in _points(message):
        if len(found) >= MAX_CLIENT_SERIES:
            dropped += 1
            continue
        name, labels = page_name(metric.name), tuple(sorted(_labels(point)))
        value = point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)
        doc = f"{_short(metric.description or metric.name)} (pushed by clients)."
        found[name, labels] = Series(name, doc, labels, value)
    return list(found.values()), dropped


def _points(message: Any) -> Iterator[tuple[Any, Any]]:
    """Gauges and sums, which are all that clients of Kafka push."""
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                if kind in ("gauge", "sum"):
                    for point in getattr(metric, kind).data_points:
                        yield metric, point


_SUFFIX: Final = re.compile(r"(_(total|count|sum|bucket|info|created))+$")


def page_name(name: str) -> str:
    """The name of a pushed metric on the page, without the suffixes that Prometheus keeps for other types."""
    plain = re.sub(r"[^a-zA-Z0-9]+", "_", _short(name).removeprefix(PREFIX)).strip("_").lower()
    return f"kafka_client_{_SUFFIX.sub('', plain) or 'unnamed'}"


def _labels(point: Any) -> Iterator[tuple[str, str]]:
    seen: set[str] = set(CLIENT_LABELS)
    for attribute in point.attributes[:MAX_LABELS]:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", _short(attribute.key)).lstrip("_0123456789")
        if name and name not in seen:
            seen.add(name)
            kind = attribute.value.WhichOneof("value")
            if kind in ("string_value", "int_value", "double_value", "bool_value"):
                yield name, _short(str(getattr(attribute.value, kind)))


def _short(text: str) -> str:
    return text[:MAX_TEXT]


def requested() -> Mapping[str, Any]:
    """What clients shall push: every metric, as sums since their start."""
    return {
        "subscription_id": SUBSCRIPTION_ID,
        "accepted_compression_types": [ZSTD, LZ4, GZIP, SNAPPY, NONE],  # the first is preferred
        "telemetry_max_bytes": MAX_PUSH_BYTES,
        "delta_temporality": False,
        "requested_metrics": [""],
    }
