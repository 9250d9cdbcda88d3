"""Three simulated services that send logs and metrics by an OpenTelemetry SDK, in a process of their own.

`python -m headrace.demo.telemetry GATEWAY START SECONDS` sends `MINUTES` minutes of requests that begin at
START (seconds since 1970) within SECONDS. The clock of this process is simulated. It is set before the SDK is
imported, because the SDK takes the time of metrics from it. `traffic` is what happens; the check of the
scenario computes the expected results from it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES: Final = ("cart", "payments", "search")
MINUTES: Final = 90
REQUESTS: Final = 30
"""Requests of a service per minute."""
FAILING: Final = ("cart", range(70, 75))
"""Half of the requests of this service fail in these minutes."""
SLOW: Final = ("payments", range(55, 59))
"""This service is eight times as slow in these minutes."""
NIGHT_MINUTES: Final = 60
"""After the last minute a single request follows this much later, so that all windows close."""
BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of buckets that OpenTelemetry recommends for durations of requests."""
DURATION: Final = "http.server.request.duration"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """A request to a service."""

    service: str
    second: float
    """Seconds since the start."""
    duration_s: float
    failed: bool


def traffic(minute: int) -> Iterator[SimulatedRequest]:
    """The requests of a minute, in the order of their time; the same in each process."""
    dice = random.Random(minute)
    for number in range(REQUESTS):
        for service in SERVICES:
            slowness = 8.0 if service == SLOW[0] and minute in SLOW[1] else 1.0
            failing = 0.5 if service == FAILING[0] and minute in FAILING[1] else 0.01
            yield SimulatedRequest(
                service=service,
                second=60 * minute + 55 * number / REQUESTS,
                duration_s=slowness * dice.lognormvariate(-2.5, 0.4),
                failed=dice.random() < failing,
            )


def require_sdk() -> None:
    """Raise an error that names the package if the OpenTelemetry SDK is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk._logs  # noqa: F401
    except ImportError as fault:
        raise Misuse(
            "this scenario sends logs and metrics with the OpenTelemetry SDK, which is not installed: "
            "pip install 'headrace[tracing]'."
        ) from fault


class Clock:
    """The clock of this process, which is where the simulation is."""

    def __init__(self, start_s: float) -> None:
        self.start_ns = int(start_s * 1e9)
        self._now_ns = self.start_ns
        time.time_ns = self.now_ns

    def now_ns(self) -> int:
        """The simulated time."""
        return self._now_ns

    def set(self, second: float) -> None:
        """Set the simulated time."""
        self._now_ns = self.start_ns + int(second * 1e9)


class Service:
    """A service with providers of the SDK, as an application sets them up."""

    def __init__(self, name: str, gateway: str) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
        from opentelemetry.sdk.metrics import Histogram, MeterProvider
        from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        resource = Resource.create({"service.name": name})
        self._logs = LoggerProvider(resource=resource)
        self._logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{gateway}/v1/logs")))
        self._logger = self._logs.get_logger("requests")
        exporter = OTLPMetricExporter(
            f"{gateway}/v1/metrics", preferred_temporality={Histogram: AggregationTemporality.DELTA}
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
        self._metrics = MeterProvider([reader], resource=resource)
        self._duration = self._metrics.get_meter("requests").create_histogram(
            DURATION, unit="s", explicit_bucket_boundaries_advisory=BOUNDS_S
        )

    def handle(self, request: SimulatedRequest) -> None:
        """Record the duration of a request, and write its log."""
        from opentelemetry._logs import SeverityNumber

        status = 500 if request.failed else 200
        self._duration.record(request.duration_s, {"http.response.status_code": status})
        self._logger.emit(
            timestamp=time.time_ns(),
            severity_number=SeverityNumber.ERROR if request.failed else SeverityNumber.INFO,
            body=f"GET /: {status}",
            attributes={"http.response.status_code": status},
        )

    def flush(self) -> bool:
        """Export what was recorded; returns whether the gateway has stored it."""
        return self._logs.force_flush() and self._metrics.force_flush()


def send(gateway: str, start_s: float, seconds: float) -> bool:
    """Send all minutes; returns whether the gateway has stored everything."""
    clock = Clock(start_s)
    services = {name: Service(name, gateway) for name in SERVICES}
    begin_s, is_stored = time.monotonic(), True
    for minute in (*range(MINUTES), MINUTES + NIGHT_MINUTES):
        for request in traffic(minute):
            clock.set(request.second)
            services[request.service].handle(request)
        for service in services.values():
            is_stored &= service.flush()
        due_s = begin_s + seconds * (minute + 1) / MINUTES
        time.sleep(max(0.0, min(due_s, begin_s + seconds) - time.monotonic()))
    return is_stored


def _end_with_input() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    os._exit(0 if send(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])) else 1)
