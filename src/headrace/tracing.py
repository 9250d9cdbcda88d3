"""Traces: spans of the work that Headrace does, exported by OTLP, and the W3C `traceparent` that links them.

A span has the span that caused it as its parent, or links to several causes. Its own `traceparent` is a
header of the records that it writes. Without an endpoint there is no tracer, OpenTelemetry is not imported,
and headers pass unchanged.

The SDK's own variables apply too, such as `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_TRACES_SAMPLER`.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

HEADER: Final = "traceparent"
MAX_LINKS: Final = 32
"""Links of one span."""
SHUTDOWN_MS: Final = 5_000
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})"
)

Kind = Literal["producer", "consumer", "internal"]


def traceparent_of(headers: Iterable[tuple[str, bytes | None]]) -> str | None:
    """The valid `traceparent` in the headers of a record, or None."""
    for name, value in headers:
        if name == HEADER and value is not None:
            text = value.decode("ascii", "replace")
            return text if _TRACEPARENT.fullmatch(text) else None
    return None


class Span:
    """Work in progress; as a context manager it ends with its block, and records the block's exception."""

    def __init__(self, span: Any) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
        """What records that come of this work carry."""

    def set(self, **attributes: str | int | float | bool) -> None:
        """Add attributes; underscores in their names stand for dots."""
        for name, value in attributes.items():
            self._span.set_attribute(name.replace("_", "."), value)

    def end(self, error: BaseException | str | None = None) -> None:
        """The work is done, or failed."""
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)


class Tracer:
    """Starts spans of one service. Spans are exported in the background, and dropped when too many wait."""

    def __init__(self, service: str, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as fault:
            raise Misuse(
                f"traces cannot be sent to {endpoint}, because OpenTelemetry is not installed: "
                "pip install 'headrace[tracing]'."
            ) from fault
        exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + "/v1/traces")
        self._provider = TracerProvider(resource=Resource.create({"service.name": service}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headrace")

    def start(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        parent: str | None = None,
        links: Sequence[str] = (),
        start_ms: int | None = None,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Span:
        """A span that begins now, or began at `start_ms`."""
        from opentelemetry.trace import Link, SpanKind

        contexts = [context for text in links[:MAX_LINKS] if (context := _context(text)) is not None]
        return Span(
            self._tracer.start_span(
                name,
                context=_parent(parent),
                kind=SpanKind[kind.upper()],
                links=[Link(context) for context in contexts],
                start_time=None if start_ms is None else start_ms * 1_000_000,
                attributes=attributes,
            )
        )

    def flush(self) -> None:
        """Export the spans that have ended."""
        self._provider.force_flush(SHUTDOWN_MS)


_tracers: dict[tuple[str, str], Tracer] = {}
_tracers_lock = threading.Lock()


def open_tracer(service: str, endpoint: str | None) -> Tracer | None:
    """The tracer of a service in this process; None without an endpoint. It exports the rest at exit."""
    if endpoint is None:
        return None
    with _tracers_lock:
        key = (service, endpoint)
        if key not in _tracers:
            _tracers[key] = Tracer(service, endpoint)
        return _tracers[key]


def _context(traceparent: str) -> Any:
    """The span context in a `traceparent`; None if it is none."""
    from opentelemetry.trace import SpanContext, TraceFlags

    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    trace, span, flags = (int(part, 16) for part in match.groups())
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))


def _parent(traceparent: str | None) -> Any:
    """The context of a remote parent, or else that of the caller's own span, if there is one."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    context = None if traceparent is None else _context(traceparent)
    return None if context is None else set_span_in_context(NonRecordingSpan(context))
