"""An unmodified OpenTelemetry SDK sends to the gateway; and OTLP by hand, in both encodings."""

import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from headrace.gateway.otlp import LOGS_SCHEMA, METRICS_SCHEMA, TRACES_SCHEMA
from headrace.gateway.server import GatewayThread
from headrace.testing import EmbeddedBroker
from tests.gateway.topics import read_topic

RESOURCE = Resource.create({"service.name": "shop", "host.cores": 8})
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def rows(kafka: EmbeddedBroker) -> Callable[[str], list[Any]]:
    """A function that returns the rows of a topic that were added during the test."""
    topics = ("otel.logs", "otel.metrics", "otel.traces")
    before = {name: len(read(kafka, name)) for name in topics}
    return lambda name: [json.loads(record.value or b"") for record in read(kafka, name)[before[name] :]]


def read(kafka: EmbeddedBroker, topic: str) -> list[Any]:
    from headrace.client.cluster import Cluster

    with Cluster.of(kafka.bootstrap) as cluster:
        if topic not in cluster.topics((topic,)):
            return []
    return list(read_topic(kafka.bootstrap, topic))


def names_of(schema: str) -> set[str]:
    """The columns of a schema in Spark's DDL."""
    flat = re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", re.sub(r"<[^<>]*>", "", schema)))
    return {column.split()[0] for column in flat.split(",")}


def test_logs_of_an_sdk_are_rows(gateway: GatewayThread, rows: Any) -> None:
    provider = LoggerProvider(resource=RESOURCE)
    exporter = OTLPLogExporter(f"{gateway.url}/v1/logs", compression=Compression.Gzip)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    provider.get_logger("checkout").emit(
        severity_number=SeverityNumber.ERROR,
        severity_text="ERROR",
        body="payment 7 failed",
        attributes={"amount": 1.5, "tags": ["a", "b"]},
    )
    provider.shutdown()
    (row,) = rows("otel.logs")
    assert (row["body"], row["service"], row["severity_number"]) == ("payment 7 failed", "shop", 17)
    assert row["severity"] == "ERROR"
    assert row["attributes"]["amount"] == "1.5"
    assert json.loads(row["attributes"]["tags"]) == ["a", "b"]
    assert row["resource"]["host.cores"] == "8"
    assert row["time"].endswith("Z")
    assert row.keys() <= names_of(LOGS_SCHEMA)


def test_metrics_of_an_sdk_are_rows(gateway: GatewayThread, rows: Any) -> None:
    exporter = OTLPMetricExporter(f"{gateway.url}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    provider = MeterProvider([reader], resource=RESOURCE)
    meter = provider.get_meter("checkout")
    meter.create_counter("orders", unit="1").add(3, {"product": "tea"})
    histogram = meter.create_histogram("latency", unit="ms")
    for value in (1.0, 30.0, 20_000.0):
        histogram.record(value)
    meter.create_gauge("stock").set(2.5)
    provider.shutdown()
    found = {row["metric"]: row for row in rows("otel.metrics")}
    assert (found["orders"]["kind"], found["orders"]["value"]) == ("sum", 3.0)
    assert (found["orders"]["monotonic"], found["orders"]["temporality"]) == (True, "cumulative")
    assert found["orders"]["attributes"] == {"product": "tea"}
    assert (found["latency"]["count"], found["latency"]["max"]) == (3, 20_000.0)
    assert len(found["latency"]["bucket_counts"]) == len(found["latency"]["bounds"]) + 1
    assert found["stock"]["value"] == 2.5
    assert all(row.keys() <= names_of(METRICS_SCHEMA) for row in found.values())


def test_spans_of_an_sdk_are_rows(gateway: GatewayThread, rows: Any) -> None:
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{gateway.url}/v1/traces")))
    tracer = provider.get_tracer("checkout")
    with tracer.start_as_current_span("order") as parent, tracer.start_as_current_span("pay") as span:
        span.add_event("declined", {"reason": "limit"})
    provider.shutdown()
    child, root = rows("otel.traces")
    assert (child["name"], root["name"]) == ("pay", "order")
    assert child["parent_span_id"] == root["span_id"] == f"{parent.get_span_context().span_id:016x}"
    assert child["trace_id"] == root["trace_id"]
    assert child["events"][0]["name"] == "declined"
    assert child["events"][0]["attributes"] == {"reason": "limit"}
    assert 0 <= child["duration"] <= root["duration"]
    assert (child["kind"], child["status"], child["service"]) == ("internal", "unset", "shop")
    assert child.keys() <= names_of(TRACES_SCHEMA)


def logs_request(*bodies: str) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for body in bodies:
        record = records.add(trace_id=bytes(range(16)), span_id=bytes(range(8)))
        record.body.string_value = body
    return request


def as_otlp_json(message: Any) -> bytes:
    """OTLP writes ids as hexadecimal digits, and not as base64."""
    document = MessageToDict(message)
    for record in document["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
        record["traceId"], record["spanId"] = bytes(range(16)).hex(), bytes(range(8)).hex()
        record["unknown"] = 1
    return json.dumps(document).encode()


def test_both_encodings_give_the_same_rows(client: httpx.Client, rows: Any) -> None:
    request = logs_request("a", "b")
    binary = client.post("/v1/logs", content=request.SerializeToString(), headers=PROTOBUF)
    assert (binary.status_code, binary.headers["content-type"]) == (200, "application/x-protobuf")
    assert ExportLogsServiceResponse.FromString(binary.content) == ExportLogsServiceResponse()
    packed = {**JSON, "Content-Encoding": "gzip"}
    text = client.post("/v1/logs", content=gzip.compress(as_otlp_json(request)), headers=packed)
    assert (text.status_code, text.json()) == (200, {})
    first, second, third, fourth = rows("otel.logs")
    for row in (first, second, third, fourth):
        del row["time"], row["observed_time"]  # the SDK set none, so it is the time of arrival
    assert [first, second] == [third, fourth]
    assert first["trace_id"] == "000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize("body", [b"\xff\xff", b'{"resourceLogs": 1}', b"[]", b"{"])
@pytest.mark.parametrize("headers", [PROTOBUF, JSON])
def test_a_body_that_is_not_otlp_is_refused(client: httpx.Client, body: bytes, headers: Any) -> None:
    answer = client.post("/v1/logs", content=body, headers=headers)
    assert answer.status_code == 400


def test_another_content_type_is_refused(client: httpx.Client) -> None:
    assert client.post("/v1/traces", content=b"", headers={"Content-Type": "text/xml"}).status_code == 415


def test_an_empty_request_is_a_success(client: httpx.Client) -> None:
    for path in ("/v1/logs", "/v1/metrics", "/v1/traces"):
        assert client.post(path, content=b"", headers=PROTOBUF).status_code == 200


def test_records_that_are_too_large_are_counted_in_the_answer(client: httpx.Client, rows: Any) -> None:
    request = logs_request("small", "x" * (2 << 20))
    answer = client.post("/v1/logs", content=request.SerializeToString(), headers=PROTOBUF)
    partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_log_records) == (200, 1)
    assert "too large" in partial.error_message
    assert [row["body"] for row in rows("otel.logs")] == ["small"]


def test_all_kinds_of_metrics_have_rows(client: httpx.Client, rows: Any) -> None:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    exponential = metrics.add(name="exponential").exponential_histogram.data_points.add(count=2, scale=1)
    exponential.positive.bucket_counts.extend([1, 1])
    quantile = metrics.add(name="summary").summary.data_points.add(count=2, sum=3.0).quantile_values.add()
    quantile.quantile, quantile.value = 0.5, float("nan")
    metrics.add(name="empty")
    points = metrics.add(name="gauge").gauge.data_points
    points.add(as_double=float("inf"))
    points.add(as_int=-5)
    assert client.post("/v1/metrics", content=request.SerializeToString(), headers=PROTOBUF).is_success
    found = {row["metric"]: row for row in rows("otel.metrics")}
    assert found["exponential"]["positive_counts"] == [1, 1]
    assert found["summary"]["quantiles"] == {"0.5": "NaN"}
    assert found["gauge"]["value"] == -5.0
    assert "empty" not in found
    assert all(row.keys() <= names_of(METRICS_SCHEMA) for row in found.values())


def test_times_outside_of_the_calendar_are_none(client: httpx.Client, rows: Any) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(name="x")
    span.start_time_unix_nano = (1 << 64) - 1
    assert client.post("/v1/traces", content=request.SerializeToString(), headers=PROTOBUF).is_success
    (row,) = rows("otel.traces")
    assert row["time"] is not None  # the year 2554
    assert (row["end_time"], row["duration"]) == (None, None)
