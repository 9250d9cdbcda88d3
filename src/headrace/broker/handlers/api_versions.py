"""ApiVersions (key 18), versions 0–4: the served APIs and their versions.

The finalized feature `transaction.version` 2 makes Java clients use the transactions of KIP-890, and
`share.version` 1 enables share groups (KIP-932). As in Apache Kafka, responses below version 4 omit features
whose minimum version is 0: older clients cannot read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 4)
FEATURES: Final = {"transaction.version": 2, "share.version": 1}


def handle(broker: Broker, _request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the version range of every API."""
    features = [{"name": name, "min_version": 0, "max_version": level} for name, level in FEATURES.items()]
    finalized = [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in FEATURES.items()
    ]
    return {
        "error_code": 0,
        "api_keys": _ranges(broker),
        "supported_features": features if context.version >= 4 else (),
        "finalized_features_epoch": 0,
        "finalized_features": finalized,
    }


def unsupported(broker: Broker) -> Mapping[str, Any]:
    """The response to an unsupported version: the client retries with a version that both know."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": _ranges(broker)}


def _ranges(broker: Broker) -> list[Mapping[str, int]]:
    return [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in broker.served.items()
    ]
