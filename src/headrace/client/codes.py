"""Kafka's refusals by what a client does about them: wait, look for the right broker, or give up."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

PASSING: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
    }
)
"""Refusals of coordinators that go away by themselves: the request is worth repeating."""

MOVED: Final = frozenset(
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
"""Refusals of a broker that does not lead the partition, or not yet: metadata is to be asked for again."""

IN_PLACE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.concurrent_transactions,
        ErrorCode.unstable_offset_commit,
    }
)
"""Refusals of the right broker: asking another one would not help."""

UNWRITTEN: Final = (
    MOVED
    | PASSING
    | {
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        # Apache Kafka answers so when the first writes of several tasks meet, and when replicas are missing.
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.throttling_quota_exceeded,
    }
)
"""Refusals of a write that is to be repeated as it is."""

FENCED: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
"""Somebody else has the transactional id now, or the coordinator ended the transaction on its own."""
