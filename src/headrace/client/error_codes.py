"""Kafka's error codes by what a client does about them."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

COORDINATOR_RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)
"""Errors of coordinators that pass: repeat the request."""

LEADER_CHANGED: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
    }
)
"""Errors of a broker that does not lead the partition: refresh the metadata, and repeat the request."""

RETRIABLE_IN_PLACE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.unstable_offset_commit,
    }
)
"""Errors of the right broker: repeat the request there, without a metadata refresh."""

PRODUCE_RETRIABLE: Final = (
    LEADER_CHANGED
    | COORDINATOR_RETRIABLE
    | {
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        # Apache Kafka answers so when the first writes of several tasks meet, and when replicas are missing.
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.throttling_quota_exceeded,
    }
)
"""Errors after which the same batch is sent again."""

FENCED: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""Another producer has the transactional id, or the coordinator aborted the transaction after its timeout."""
