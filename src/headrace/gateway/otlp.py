"""OpenTelemetry logs, metrics and traces over HTTP (OTLP), as flat typed rows in topics.

| endpoint | topic | one row per | key |
|---|---|---|---|
| `/v1/logs` | `otel.logs` | log record | service |
| `/v1/metrics` | `otel.metrics` | data point | service |
| `/v1/traces` | `otel.traces` | span | trace id |

`LOGS_SCHEMA`, `METRICS_SCHEMA` and `TRACES_SCHEMA` are the columns, for `app.stream("otel.logs", LOGS_SCHEMA,
event_time="time")`. Bodies are Protobuf or JSON. Times have microseconds; attributes that are not text are
their JSON.
"""

from __future__ import annotations

import binascii
import json
import math
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from starlette.responses import Response

from headrace.gateway.errors import HttpError
from headrace.gateway.ingest import Arrival, parse_json
from headrace.gateway.producer import ANY_PARTITION, OutgoingRecord, RejectedRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.gateway.producer import Result

LOGS_SCHEMA: Final = (
    "time timestamp, observed_time timestamp, severity string, severity_number int, body string, "
    "event_name string, service string, trace_id string, span_id string, attributes map<string,string>, "
    "resource map<string,string>, scope string"
)
METRICS_SCHEMA: Final = (
    "time timestamp, start_time timestamp, metric string, kind string, unit string, value double, "
    "count bigint, sum double, min double, max double, bounds array<double>, bucket_counts array<bigint>, "
    "scale int, zero_count bigint, positive_offset int, positive_counts array<bigint>, negative_offset int, "
    "negative_counts array<bigint>, quantiles map<string,double>, temporality string, monotonic boolean, "
    "service string, attributes map<string,string>, resource map<string,string>, scope string"
)
TRACES_SCHEMA: Final = (
    "time timestamp, end_time timestamp, duration double, name string, kind string, status string, "
    "status_message string, service string, trace_id string, span_id string, parent_span_id string, "
    "attributes map<string,string>, "
    "events array<struct<time:timestamp,name:string,attributes:map<string,string>>>, "
    "links array<struct<trace_id:string,span_id:string,attributes:map<string,string>>>, "
    "resource map<string,string>, scope string"
)
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
HEX_FIELDS: Final = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
"""OTLP writes these bytes as hexadecimal digits in JSON, where Protobuf writes base64."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpEndpoint:
    """One of the three endpoints."""

    topic: str
    request: Any
    response: Any
    rejected: str
    """The field of a partial success that counts what was not stored."""
    key: str
    """The column that is the key of records."""


ENDPOINTS: Final[Mapping[str, OtlpEndpoint]] = {
    "/v1/logs": OtlpEndpoint(
        topic="otel.logs",
        request=ExportLogsServiceRequest,
        response=ExportLogsServiceResponse,
        rejected="rejected_log_records",
        key="service",
    ),
    "/v1/metrics": OtlpEndpoint(
        topic="otel.metrics",
        request=ExportMetricsServiceRequest,
        response=ExportMetricsServiceResponse,
        rejected="rejected_data_points",
        key="service",
    ),
    "/v1/traces": OtlpEndpoint(
        topic="otel.traces",
        request=ExportTraceServiceRequest,
        response=ExportTraceServiceResponse,
        rejected="rejected_spans",
        key="trace_id",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpRequest:
    """The records of an export request, and how it is answered."""

    endpoint: OtlpEndpoint
    media_type: str
    records: list[OutgoingRecord]

    @property
    def topic(self) -> str:
        """The topic of the records."""
        return self.endpoint.topic

    @classmethod
    def decode(cls, path: str, media_type: str, body: bytes, time_s: float) -> OtlpRequest:
        """Decode a request that arrived at `time_s`; raises an error with 400 or 415."""
        endpoint = ENDPOINTS[path]
        message = _decode(endpoint.request, media_type, body)
        arrival = Arrival.at(time_s)
        records = [
            OutgoingRecord(
                json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"),
                (row.get(endpoint.key) or "").encode(errors="replace") or None,
                ANY_PARTITION,
                arrival.timestamp_ms,
                [arrival.header],
            )
            for row in _rows(message, time_s)
        ]
        return cls(endpoint=endpoint, media_type=media_type, records=records)

    def respond(self, results: Sequence[Result]) -> Response:
        """The answer: how many records were rejected, if only some were stored."""
        rejected = [result for result in results if isinstance(result, RejectedRecord)]
        if rejected and len(rejected) == len(results):
            return self._error(rejected[0])
        answer = self.endpoint.response()
        if rejected:
            setattr(answer.partial_success, self.endpoint.rejected, len(rejected))
            answer.partial_success.error_message = rejected[0].reason
        if self.media_type == JSON:
            return Response(MessageToJson(answer, indent=None), media_type=JSON)
        return Response(answer.SerializeToString(), media_type=PROTOBUF)

    def _error(self, rejected: RejectedRecord) -> Response:
        """A status message (google.rpc.Status); clients repeat the request after 429 and 503."""
        fault = rejected.error()
        headers = {name.decode(): value.decode() for name, value in fault.headers}
        if self.media_type == JSON:
            body, media_type = json.dumps({"message": rejected.reason}).encode(), JSON
        else:
            text = rejected.reason.encode()[:127]
            body, media_type = b"\x12" + bytes([len(text)]) + text, PROTOBUF
        return Response(body, status_code=fault.status.value, headers=headers, media_type=media_type)


def _decode(kind: Any, media_type: str, body: bytes) -> Any:
    try:
        if media_type == PROTOBUF:
            return kind.FromString(body)
        if media_type == JSON:
            document = parse_json(body.decode())
            if not isinstance(document, dict):
                raise ValueError("it is not a JSON object")
            return ParseDict(_with_base64(document), kind(), ignore_unknown_fields=True)
    except (DecodeError, ParseError, ValueError, RecursionError) as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not an OTLP request: {fault}") from None
    raise HttpError(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"the content type {media_type!r} is not supported: use {PROTOBUF} or {JSON}",
    )


def _with_base64(document: Any) -> Any:
    """The document with its ids as Protobuf expects them."""
    if isinstance(document, list):
        return [_with_base64(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {
        name: b64encode(binascii.unhexlify(value)).decode()
        if name in HEX_FIELDS and isinstance(value, str)
        else _with_base64(value)
        for name, value in document.items()
    }


def _rows(message: Any, time_s: float) -> Iterator[Row]:
    if isinstance(message, ExportLogsServiceRequest):
        for record, common in _nested(message.resource_logs, "scope_logs", "log_records"):
            yield _log(record, time_s) | common
    elif isinstance(message, ExportMetricsServiceRequest):
        for metric, common in _nested(message.resource_metrics, "scope_metrics", "metrics"):
            for row in _points(metric):
                yield row | common
    else:
        for span, common in _nested(message.resource_spans, "scope_spans", "spans"):
            yield _span(span) | common


def _nested(resources: Iterable[Any], scopes: str, items: str) -> Iterator[tuple[Any, Row]]:
    """The items of all scopes of all resources, each with the columns that they share."""
    for resource in resources:
        for scope in getattr(resource, scopes):
            common = _common(resource.resource, scope.scope)
            for item in getattr(scope, items):
                yield item, common


def _common(resource: Any, scope: Any) -> Row:
    attributes = _attributes(resource.attributes)
    return {"service": attributes.get("service.name"), "resource": attributes, "scope": scope.name or None}


def _log(record: Any, time_s: float) -> Row:
    observed = record.observed_time_unix_nano or int(time_s * 1e9)
    number = record.severity_number
    name = record.severity_text
    if not name and number:
        name = SeverityNumber.Name(number).removeprefix("SEVERITY_NUMBER_") if number <= 24 else ""
    return {
        "time": _time(record.time_unix_nano or observed),
        "observed_time": _time(observed),
        "severity": name or None,
        "severity_number": number or None,
        "body": _value(record.body),
        "event_name": record.event_name or None,
        "trace_id": record.trace_id.hex() or None,
        "span_id": record.span_id.hex() or None,
        "attributes": _attributes(record.attributes),
    }


def _points(metric: Any) -> Iterator[Row]:
    """A row for each data point of a metric."""
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    about: Row = {"metric": metric.name, "kind": kind, "unit": metric.unit or None}
    if kind not in ("gauge", "summary"):
        name = AggregationTemporality.Name(data.aggregation_temporality)
        about["temporality"] = name.removeprefix("AGGREGATION_TEMPORALITY_").lower()
    if kind == "sum":
        about["monotonic"] = data.is_monotonic
    for point in data.data_points:
        yield {
            "time": _time(point.time_unix_nano),
            "start_time": _time(point.start_time_unix_nano),
            **about,
            **_POINTS[kind](point),
            "attributes": _attributes(point.attributes),
        }


def _number(point: Any) -> Row:
    kind = point.WhichOneof("value")
    return {"value": None if kind is None else _double(float(getattr(point, kind)))}


def _statistics(point: Any) -> Row:
    names = ("sum", "min", "max")
    return {"count": point.count} | {
        name: _double(getattr(point, name)) if point.HasField(name) else None for name in names
    }


def _histogram(point: Any) -> Row:
    return _statistics(point) | {
        "bounds": list(map(_double, point.explicit_bounds)),
        "bucket_counts": list(point.bucket_counts),
    }


def _exponential_histogram(point: Any) -> Row:
    return _statistics(point) | {
        "scale": point.scale,
        "zero_count": point.zero_count,
        "positive_offset": point.positive.offset,
        "positive_counts": list(point.positive.bucket_counts),
        "negative_offset": point.negative.offset,
        "negative_counts": list(point.negative.bucket_counts),
    }


def _summary(point: Any) -> Row:
    quantiles = {str(each.quantile): _double(each.value) for each in point.quantile_values}
    return {"count": point.count, "sum": _double(point.sum), "quantiles": quantiles}


_POINTS: Final = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}


def _span(span: Any) -> Row:
    is_over = span.end_time_unix_nano >= span.start_time_unix_nano > 0
    duration_ns = span.end_time_unix_nano - span.start_time_unix_nano
    return {
        "time": _time(span.start_time_unix_nano),
        "end_time": _time(span.end_time_unix_nano),
        "duration": duration_ns / 1e9 if is_over else None,
        "name": span.name,
        "kind": _enum_name(Span.SpanKind, span.kind, "SPAN_KIND_"),
        "status": _enum_name(Status.StatusCode, span.status.code, "STATUS_CODE_"),
        "status_message": span.status.message or None,
        "trace_id": span.trace_id.hex() or None,
        "span_id": span.span_id.hex() or None,
        "parent_span_id": span.parent_span_id.hex() or None,
        "attributes": _attributes(span.attributes),
        "events": [
            {
                "time": _time(event.time_unix_nano),
                "name": event.name,
                "attributes": _attributes(event.attributes),
            }
            for event in span.events
        ],
        "links": [
            {
                "trace_id": link.trace_id.hex(),
                "span_id": link.span_id.hex(),
                "attributes": _attributes(link.attributes),
            }
            for link in span.links
        ],
    }


def _enum_name(enum: Any, number: int, prefix: str) -> str:
    return enum.Name(number).removeprefix(prefix).lower() if number in enum.values() else str(number)


def _time(nanoseconds: int) -> str | None:
    """The time in RFC 3339; None if it is not set, or after the year 9999."""
    if not nanoseconds:
        return None
    try:
        moment = EPOCH + timedelta(microseconds=nanoseconds // 1000)
    except OverflowError:
        return None
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _attributes(pairs: Iterable[Any]) -> dict[str, str | None]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> str | None:
    """A value as text: text as it is, everything else as JSON."""
    plain = _plain(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "array_value":
            return [_plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {pair.key: _plain(pair.value) for pair in value.kvlist_value.values}
        case "bytes_value":
            return b64encode(value.bytes_value).decode()
        case "double_value":
            return _double(value.double_value)
    return getattr(value, kind)


def _double(number: float) -> float | str:
    """A number; JSON has no NaN and infinity, which Spark reads from text."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
