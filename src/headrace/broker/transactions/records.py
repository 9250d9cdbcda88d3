"""The records of `__transaction_state` in the formats of Apache Kafka's transaction log.

The key is TransactionLogKey 0. The value is written as TransactionLogValue 1, with compact types and tagged
fields, and read in versions 0 and 1. One tagged field is specific to Headrace: the previous epoch, with which
a producer can repeat a request across a restart of the broker. Kafka's readers skip it.

The next producer id, which Kafka's controller stores elsewhere, is a record with its own key version.
Kafka's readers skip it, too.
"""

from __future__ import annotations

import struct
from typing import Final

from headrace.broker.record_fields import FieldReader, FieldWriter
from headrace.broker.state_log import UnknownRecord
from headrace.broker.transactions.transaction import TopicPartition, TransactionMetadata, TransactionState

TRANSACTION_KEY: Final = 0
PRODUCER_IDS_KEY: Final = 1000
"""A key version that Kafka does not use."""

_VALUE_VERSION: Final = 1
_SHORT: Final = struct.Struct(">h")
_LONG: Final = struct.Struct(">q")
_STATES: Final = frozenset(TransactionState)
_TAGGED_FIELDS: Final = {
    0: ("previous_producer_id", _LONG, -1),
    1: ("next_producer_id", _LONG, -1),
    2: ("client_version", _SHORT, 0),
    1000: ("last_epoch", _SHORT, -1),
}
"""Name, type and default of each tagged field; 1000 is the field that is specific to Headrace."""


def write_key(transactional_id: str) -> bytes:
    """The key of a transactional id."""
    return FieldWriter().i16(TRANSACTION_KEY).string(transactional_id).done()


def read_key(key: bytes) -> str | None:
    """The transactional id of a key; None for the key of the next producer id."""
    reader = FieldReader(key)
    version = reader.i16()
    if version == PRODUCER_IDS_KEY:
        return None
    if version != TRANSACTION_KEY:
        raise _unknown(f"a key of version {version}")
    return reader.string()


def write_next_producer_id(next_id: int) -> tuple[bytes, bytes]:
    """Key and value of the record of the next producer id."""
    return FieldWriter().i16(PRODUCER_IDS_KEY).done(), FieldWriter().i16(0).i64(next_id).done()


def read_next_producer_id(value: bytes) -> int:
    """The first producer id that was not allocated."""
    reader = FieldReader(value)
    version = reader.i16()
    if version != 0:
        raise _unknown(f"a next producer id of version {version}")
    return reader.i64()


def _unknown(what: str) -> UnknownRecord:
    return UnknownRecord(
        f"__transaction_state holds {what}, which a newer broker wrote: start that version on this folder"
    )


def write_value(transaction: TransactionMetadata) -> bytes:
    """Encode the metadata of a transactional id."""
    writer = FieldWriter(compact=True)
    writer.i16(_VALUE_VERSION).i64(transaction.producer_id).i16(transaction.epoch)
    writer.i32(transaction.timeout_ms).i8(transaction.state)
    _write_partitions(writer, transaction)
    writer.i64(transaction.updated_ms).i64(transaction.started_ms)
    fields = {
        tag: layout.pack(getattr(transaction, name))
        for tag, (name, layout, default) in _TAGGED_FIELDS.items()
        if getattr(transaction, name) != default
    }
    return writer.tagged_fields(fields).done()


def _write_partitions(writer: FieldWriter, transaction: TransactionMetadata) -> None:
    if transaction.state is TransactionState.EMPTY:
        writer.count(None)  # Kafka writes null instead of an empty array in this state only
        return
    topics: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        topics.setdefault(topic, []).append(partition)
    writer.count(len(topics))
    for topic, partitions in sorted(topics.items()):
        writer.string(topic).count(len(partitions))
        for partition in sorted(partitions):
            writer.i32(partition)
        writer.tagged_fields()


def read_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Decode the metadata of a transactional id."""
    reader = FieldReader(value)
    version = reader.i16()
    if version not in (0, _VALUE_VERSION):
        raise _unknown(f"a transaction of version {version}")
    reader.compact = version > 0
    producer_id, epoch, timeout_ms, state = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    if state not in _STATES:
        raise _unknown(f"a transaction in state {state}")
    partitions = frozenset(_read_partitions(reader))
    updated_ms, started_ms = reader.i64(), reader.i64()
    tagged = reader.tagged_fields()
    fields = {
        name: int(layout.unpack(tagged[tag])[0])
        for tag, (name, layout, _) in _TAGGED_FIELDS.items()
        if tag in tagged
    }
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=TransactionState(state),
        partitions=partitions,
        updated_ms=updated_ms,
        started_ms=started_ms,
        **fields,
    )


def _read_partitions(reader: FieldReader) -> list[TopicPartition]:
    partitions = []
    for _ in range(reader.count()):
        topic = reader.string()
        partitions += [TopicPartition(topic, reader.i32()) for _ in range(reader.count())]
        reader.tagged_fields()
    return partitions
