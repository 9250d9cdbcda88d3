"""Validates batches of clients before they are stored.

The header is checked against the bytes: the checksum, and whether the bytes can hold the number of records.
The records are not decoded, except for the keys in a compacted topic: that would cost more than the rest of
an append. Every reader checks the lengths of records itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, check_batch, read_header
from headrace.protocol.compression import CODECS, ZSTD
from headrace.protocol.records import max_records, records_without_key
from headrace.storage.errors import InvalidRecord, InvalidTimestamp, RecordsWithoutKey, RecordTooLarge

if TYPE_CHECKING:
    from headrace.storage.config import TopicConfig


MAX_REPORTED: Final = 1_000
"""Records without keys that are reported: a response must not be larger than its request."""


def validate_batch(
    batch: memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    has_keys: bool = False,
    checksum: int | None = None,
) -> BatchHeader:
    """The header of a valid batch; raises an error for an invalid one.

    `has_keys` says that `check_keys` was called already; `checksum` is that of the batch, if it is known.
    """
    if len(batch) < HEADER_BYTES:
        raise InvalidRecord(f"a record batch of {len(batch)} bytes: its header alone takes {HEADER_BYTES}")
    header = read_header(batch)
    if len(batch) > config.max_message_bytes:
        raise RecordTooLarge(
            f"a record batch of {len(batch)} bytes, and max.message.bytes is {config.max_message_bytes}: "
            "send smaller batches or raise the topic's limit"
        )
    check_batch(batch, header, checksum)
    if header.count < 1 or header.count != header.last_offset_delta + 1:
        raise InvalidRecord(f"a batch of {header.count} records that spans {header.last_offset_delta + 1}")
    if header.count > max_records(header.codec, len(batch) - HEADER_BYTES):
        raise InvalidRecord(
            f"{len(batch)} bytes cannot hold the {header.count} records that the batch counts"
        )
    # Most batches have no attributes.
    if header.attributes:
        _check_attributes(header)
    if header.producer_id >= 0 > header.base_sequence:
        raise InvalidRecord(
            "a batch with a producer id and without a sequence: duplicates could not be detected"
        )
    if config.message_timestamp_type == "CreateTime":
        _check_time(header, config, now_ms)
    if config.is_compacted and not has_keys:
        check_keys(batch)
    return header


def check_keys(batch: memoryview) -> None:
    """Raise `RecordsWithoutKey` unless every record has a key, as compacted topics require."""
    keyless = records_without_key(batch, most=MAX_REPORTED)
    if keyless:
        raise RecordsWithoutKey(
            f"record {keyless[0]} of the batch has no key, and the topic is compacted: give it one",
            indexes=tuple(keyless),
        )


def _check_attributes(header: BatchHeader) -> None:
    if header.codec > ZSTD:
        raise InvalidRecord(
            f"a batch has the unknown compression codec {header.codec}: use {', '.join(CODECS.values())}"
        )
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a client set LogAppendTime in a batch: only the broker may")
    if header.is_control:
        raise InvalidRecord("a client wrote a control batch: only the broker may")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch without a producer id")


def _check_time(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidTimestamp(
            f"records with timestamps from {header.base_timestamp} to {header.max_timestamp} ms; this topic "
            f"accepts {earliest} to {latest}: check the producer's clock or "
            "message.timestamp.{before,after}.max.ms"
        )
