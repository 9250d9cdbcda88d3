"""Which batches of clients a topic takes: decided before anything is stored.

The header is held against the bytes: the checksum, and whether so many records can be in so few bytes. The
records themselves are not opened, except where a compacted topic needs their keys: a walk over them in Python
would cost more than all the rest of an append. Every reader finds the ends of records itself and stops
where they make no sense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, check_batch, read_header
from headrace.protocol.compression import CODECS, ZSTD
from headrace.protocol.records import most_records, records_without_key
from headrace.storage.errors import InvalidRecord, InvalidTimestamp, RecordsWithoutKey, RecordTooLarge

if TYPE_CHECKING:
    from headrace.storage.config import TopicConfig


MOST_NAMED: Final = 1_000
"""Records without keys that are named to their producer: an answer is not to be larger than its request."""


def validate_batch(
    batch: memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    has_keys: bool = False,
    checksum: int | None = None,
) -> BatchHeader:
    """The header of a batch that may be stored; any other is refused with the reason.

    `has_keys` says that `check_keys` has passed the batch already, `checksum` is that of its bytes if known.
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
    if header.count > most_records(header.codec, len(batch) - HEADER_BYTES):
        raise InvalidRecord(
            f"{len(batch)} bytes cannot hold the {header.count} records that the batch counts"
        )
    # Most batches have none: this runs for each of them.
    if header.attributes:
        _check_attributes(header)
    if header.producer_id >= 0 > header.base_sequence:
        raise InvalidRecord("a batch of a producer without a sequence: it could be written twice unnoticed")
    if config.message_timestamp_type == "CreateTime":
        _check_time(header, config, now_ms)
    if config.is_compacted and not has_keys:
        check_keys(batch)
    return header


def check_keys(batch: memoryview) -> None:
    """Pass when every record has a key, as compacted topics want it, or raise `RecordsWithoutKey`."""
    keyless = records_without_key(batch, most=MOST_NAMED)
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
        raise InvalidTimestamp("a client stamped a batch with the time of its append: only the broker does")
    if header.is_control:
        raise InvalidRecord("a client wrote a control batch: only the broker may")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch without a producer id")


def _check_time(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidTimestamp(
            f"records of the times {header.base_timestamp} to {header.max_timestamp} ms, and this topic "
            f"takes {earliest} to {latest}: check the producer's clock or "
            "message.timestamp.{before,after}.max.ms"
        )
