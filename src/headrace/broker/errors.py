"""Kafka's error codes for the exceptions of Headrace. No other module maps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker import topics
from headrace.broker.overflow import policy as overflow
from headrace.protocol.errors import CorruptBatch, ProtocolError
from headrace.storage import errors as storage
from headrace.storage import producers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.errors import HeadraceError

_CODES: Final[Mapping[type[HeadraceError], ErrorCode]] = {
    CorruptBatch: ErrorCode.corrupt_message,
    ProtocolError: ErrorCode.invalid_request,
    storage.InvalidRecord: ErrorCode.invalid_record,
    storage.RecordTooLarge: ErrorCode.message_too_large,
    storage.InvalidTimestamp: ErrorCode.invalid_timestamp,
    storage.OffsetOutOfRange: ErrorCode.offset_out_of_range,
    storage.DiskError: ErrorCode.kafka_storage_error,
    storage.ArchiveError: ErrorCode.kafka_storage_error,
    storage.InvalidConfig: ErrorCode.invalid_config,
    topics.InvalidTopicName: ErrorCode.invalid_topic_exception,
    topics.TopicExists: ErrorCode.topic_already_exists,
    topics.UnknownTopic: ErrorCode.unknown_topic_or_partition,
    topics.InvalidPartitions: ErrorCode.invalid_partitions,
    # No client retries it: the application decides what to do with a rejected batch.
    overflow.TopicFull: ErrorCode.policy_violation,
    overflow.BackpressureTimeout: ErrorCode.request_timed_out,
    producers.OutOfOrderSequence: ErrorCode.out_of_order_sequence_number,
    producers.StaleProducerEpoch: ErrorCode.invalid_producer_epoch,
    producers.OutsideTransaction: ErrorCode.invalid_txn_state,
}


def error_code(fault: HeadraceError) -> ErrorCode:
    """The error code that a client gets for `fault`."""
    for kind in type(fault).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ErrorCode.unknown_server_error
