"""The HTTP server of one process, on threads of its own: `/metrics`, `/health/live` and `/health/ready`.

`/metrics` has the text format of Prometheus, or OpenMetrics for a client that asks for it. Both health pages
return 200 with `{"status": "ok"}`, or 503 with the reasons. A live process that is not ready needs time; one
that is not live needs a restart.

A client has a few seconds for its request, and only a few are served at once, so that the page costs little
even where strangers reach it.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from headrace.errors import HeadraceError
from headrace.metrics.address import MetricsAddress
from headrace.metrics.families import Histogram, Kind, Metric, Scrape, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics_core import Metric as MetricFamily

    from headrace.metrics.families import Value

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S: Final = 5.0
MAX_REQUESTS: Final = 8
"""Requests that are served at once; further connections are closed."""


class MetricsSource(Protocol):
    """The process whose metrics and health are served; the server calls it from its threads."""

    def scrape(self, scrape: Scrape) -> None:
        """Add the current samples."""
        ...

    def faults(self) -> list[str]:
        """Why the process should be restarted; empty while it is alive."""
        ...

    def pending(self) -> list[str]:
        """Why the process is not ready to work; empty once it is."""
        ...


class CannotServeMetrics(HeadraceError):
    """The page of metrics cannot be served at its address."""


class MetricsServer:
    """Serves the page of one source until it is closed."""

    def __init__(self, address: MetricsAddress, source: MetricsSource) -> None:
        try:
            self._server = _HttpServer(address, source)
        except OSError as fault:
            raise CannotServeMetrics(
                f"metrics cannot be served on {address}: {fault.strerror}; choose another address (--metrics)"
            ) from fault
        self.address = MetricsAddress(host=address.host, port=self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: MetricsAddress, source: MetricsSource) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__((address.host, address.port), partial(_Handler, source))

    def server_bind(self) -> None:
        """Bind without a lookup of the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "headrace", int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.info("a request for metrics from %s failed", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def __init__(self, source: MetricsSource, *arguments: Any) -> None:
        self._source = source
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._send_metrics()
        elif path == "/health/live":
            self._send_health(self._source.faults())
        elif path == "/health/ready":
            self._send_health(self._source.faults() or self._source.pending())
        else:
            self._send(HTTPStatus.NOT_FOUND, b"see /metrics, /health/live and /health/ready\n", "text/plain")

    def _send_metrics(self) -> None:
        try:
            body, content_type = render(self._source, self.headers.get("Accept") or "")
        except Exception:
            log.exception("the metrics could not be collected")
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, b"the log has the reason\n", "text/plain")
            return
        self._send(HTTPStatus.OK, body, content_type)

    def _send_health(self, reasons: list[str]) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        document = {"status": "unavailable", "reasons": reasons} if reasons else {"status": "ok"}
        self._send(status, json.dumps(document).encode() + b"\n", "application/json")

    def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "headrace"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002  the name of http.server
        log.debug(format, *arguments)


def render(source: MetricsSource, accept: str) -> tuple[bytes, str]:
    """The page, and its content type, for a client that accepts these types."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SourceCollector(source))
    ProcessCollector(registry=registry)
    return encode(registry), content_type


class _SourceCollector(Collector):
    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[MetricFamily]:
        scrape = Scrape()
        self._source.scrape(scrape)
        for metric, samples in scrape.samples.items():
            yield _family(metric, samples)

    def describe(self) -> list[MetricFamily]:
        return []  # registering it must not scrape


_FAMILIES: Final = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
    Kind.SUMMARY: SummaryMetricFamily,
}


def _family(metric: Metric, samples: list[tuple[Mapping[str, str], Value]]) -> MetricFamily:
    family: MetricFamily = _FAMILIES[metric.kind](metric.name, metric.doc)
    for given, value in samples:
        labels = dict(given)
        if isinstance(value, Histogram):
            buckets = value.buckets()
            for bound, count in buckets:
                family.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
            family.add_sample(f"{metric.name}_count", labels, buckets[-1][1])
            family.add_sample(f"{metric.name}_sum", labels, value.sum)
        elif isinstance(value, Summary):
            family.add_sample(f"{metric.name}_count", labels, value.count)
            family.add_sample(f"{metric.name}_sum", labels, value.sum)
        else:
            family.add_sample(metric.name, labels, value)
    return family
