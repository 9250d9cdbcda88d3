"""Metrics of clients (KIP-714): GetTelemetrySubscriptions and PushTelemetry.

GetTelemetrySubscriptions (key 71), version 0: a client learns its instance id, which metrics to push, and how
often. There is one subscription, to all metrics; clients are not selected by name or version.

PushTelemetry (key 72), version 0: a client pushes its metrics. Errors as in Apache Kafka: INVALID_REQUEST
without an instance id, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE,
THROTTLING_QUOTA_EXCEEDED for a push that comes too early, and INVALID_RECORD for bytes that are no OTLP
metrics.

Both are listed in ApiVersions only by a broker that serves metrics; others respond with UNSUPPORTED_VERSION.
Every client may push, as in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from headrace.broker.client_telemetry import (
    MAX_PUSH_BYTES,
    SUBSCRIPTION_ID,
    InvalidTelemetry,
    requested,
)
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.client_telemetry import ClientTelemetry
    from headrace.broker.request import RequestContext

NOTHING: Final[Mapping[str, Any]] = {
    "client_instance_id": None,
    "subscription_id": 0,
    "accepted_compression_types": [],
    "push_interval": 0,
    "telemetry_max_bytes": 0,
    "delta_temporality": False,
    "requested_metrics": [],
}


def get_subscriptions(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """What the client is to push."""
    if broker.client_telemetry is None:
        return {**NOTHING, "error_code": ErrorCode.unsupported_version}
    return {
        **requested(),
        "error_code": ErrorCode.none,
        "client_instance_id": request.client_instance_id or uuid4(),
        "push_interval": broker.client_telemetry.interval_ms,
    }


async def push(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Whether the metrics are taken."""
    telemetry = broker.client_telemetry
    if telemetry is None:
        return {"error_code": ErrorCode.unsupported_version}
    code = _check(telemetry, request)
    if code is not ErrorCode.none:
        return {"error_code": code}
    context.time_slice.release()  # other long requests run while a thread decodes the metrics
    try:
        await telemetry.push(
            request.client_instance_id,
            context.client_id,
            context.client_host,
            request.compression_type,
            request.metrics,
        )
    except (CorruptBatch, InvalidTelemetry):
        return {"error_code": ErrorCode.invalid_record}
    return {"error_code": ErrorCode.none}


def _check(telemetry: ClientTelemetry, request: Any) -> ErrorCode:
    if request.client_instance_id is None:
        return ErrorCode.invalid_request
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.unknown_subscription_id
    if request.compression_type not in range(len(CODECS)):
        return ErrorCode.unsupported_compression_type
    if len(request.metrics) > MAX_PUSH_BYTES:
        return ErrorCode.telemetry_too_large
    if not request.terminating and telemetry.is_too_early(request.client_instance_id):
        return ErrorCode.throttling_quota_exceeded
    return ErrorCode.none
