"""Transactions as records of `__transaction_state`, in the formats of Kafka's own transaction log.

The key is TransactionLogKey 0. The value is written as TransactionLogValue 1 (compact types and tagged
fields) and read in versions 0 and 1. One tagged field is ours: the epoch before the current one, which lets a
producer repeat a request across a restart of the broker; Kafka's readers skip it.
The counter of producer ids is a record of ours in the same topic; Kafka's readers skip its key version.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Final

from headrace.broker.statelog import UnknownRecord
from headrace.broker.transactions.transaction import State, TopicPartition, Transaction

TRANSACTION_KEY: Final = 0
PRODUCER_IDS_KEY: Final = 1000
"""A key version far beyond Kafka's own."""

_VALUE_VERSION: Final = 1
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")  # version, producer id, epoch, timeout, state
_TIMES = struct.Struct(">qq")  # last update, start

_STATES: Final = frozenset(State)

_PREVIOUS_PRODUCER_ID: Final = 0
_NEXT_PRODUCER_ID: Final = 1
_PROTOCOL: Final = 2
_LAST_EPOCH: Final = 1000
_TAGS: Final = {
    _PREVIOUS_PRODUCER_ID: ("previous_producer_id", _LONG, -1),
    _NEXT_PRODUCER_ID: ("next_producer_id", _LONG, -1),
    _PROTOCOL: ("protocol", _SHORT, 0),
    _LAST_EPOCH: ("last_epoch", _SHORT, -1),
}


def write_key(transactional_id: str) -> bytes:
    """The key under which the transactional id's latest state stands."""
    name = transactional_id.encode()
    return _SHORT.pack(TRANSACTION_KEY) + _SHORT.pack(len(name)) + name


def read_key(key: bytes) -> str | None:
    """The transactional id of a key; None for that of the counter of producer ids."""
    (version,) = _SHORT.unpack_from(key)
    if version == PRODUCER_IDS_KEY:
        return None
    if version != TRANSACTION_KEY:
        raise _unknown(f"a key of version {version}")
    (length,) = _SHORT.unpack_from(key, 2)
    return key[4 : 4 + length].decode()


def write_producer_ids(next_id: int) -> tuple[bytes, bytes]:
    """Key and value of the record that says which producer ids are still free."""
    return _SHORT.pack(PRODUCER_IDS_KEY), _SHORT.pack(0) + _LONG.pack(next_id)


def read_producer_ids(value: bytes) -> int:
    """The first free producer id."""
    (version,) = _SHORT.unpack_from(value)
    if version != 0:
        raise _unknown(f"a counter of producer ids of version {version}")
    return int(_LONG.unpack_from(value, _SHORT.size)[0])


def _unknown(what: str) -> UnknownRecord:
    return UnknownRecord(
        f"__transaction_state holds {what}, which this broker does not know: a newer broker wrote it; start "
        "that one on this folder"
    )


def write_value(transaction: Transaction) -> bytes:
    """The value that `read_value` reads, and Kafka too."""
    value = bytearray(
        _HEAD.pack(
            _VALUE_VERSION,
            transaction.producer_id,
            transaction.epoch,
            transaction.timeout_ms,
            transaction.state,
        )
    )
    _write_partitions(value, transaction)
    value += _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    _write_tags(value, transaction)
    return bytes(value)


def _write_partitions(value: bytearray, transaction: Transaction) -> None:
    if transaction.state is State.EMPTY:
        value += b"\0"  # Kafka writes null, and not an empty list, for this state alone
        return
    topics = [
        (topic, list(group)) for topic, group in groupby(sorted(transaction.partitions), lambda p: p.topic)
    ]
    _write_varint(value, len(topics) + 1)
    for topic, partitions in topics:
        name = topic.encode()
        _write_varint(value, len(name) + 1)
        value += name
        _write_varint(value, len(partitions) + 1)
        for partition in partitions:
            value += _INT.pack(partition.partition)
        value += b"\0"


def _write_tags(value: bytearray, transaction: Transaction) -> None:
    fields = [
        (tag, layout, getattr(transaction, name), default) for tag, (name, layout, default) in _TAGS.items()
    ]
    present = [(tag, layout, field) for tag, layout, field, default in fields if field != default]
    _write_varint(value, len(present))
    for tag, layout, field in present:
        _write_varint(value, tag)
        _write_varint(value, layout.size)
        value += layout.pack(field)


def _write_varint(value: bytearray, number: int) -> None:
    while number >= 0x80:
        value.append(number & 0x7F | 0x80)
        number >>= 7
    value.append(number)


def read_value(transactional_id: str, value: bytes) -> Transaction:
    """The transaction that a record of the log holds."""
    return _Reader(value).read_transaction(transactional_id)


class _Reader:
    """The bytes of one value, and how far they are read; the log's checksum has vouched for them."""

    def __init__(self, value: bytes) -> None:
        self._value = value
        self._position = 0
        self._compact = False

    def read_transaction(self, transactional_id: str) -> Transaction:
        version, producer_id, epoch, timeout_ms, state = self._unpack(_HEAD)
        if version not in (0, _VALUE_VERSION):
            raise _unknown(f"a transaction of version {version}")
        if state not in _STATES:
            raise _unknown(f"a transaction in state {state}")
        self._compact = version > 0
        partitions = frozenset(self._read_partitions())
        updated_ms, started_ms = self._unpack(_TIMES)
        return Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            epoch=epoch,
            timeout_ms=timeout_ms,
            state=State(state),
            partitions=partitions,
            updated_ms=updated_ms,
            started_ms=started_ms,
            **self._read_tags(),
        )

    def _unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        position = self._position
        self._position += layout.size
        return layout.unpack_from(self._value, position)

    def _read_varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._value[self._position]
            self._position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def _read_length(self, layout: struct.Struct) -> int:
        """The length of a string or list: one more than it is in compact form, plain before; null is 0."""
        return max(self._read_varint() - 1 if self._compact else self._unpack(layout)[0], 0)

    def _read_partitions(self) -> list[TopicPartition]:
        partitions = []
        for _ in range(self._read_length(_INT)):
            size = self._read_length(_SHORT)
            topic = self._value[self._position : self._position + size].decode()
            self._position += size
            count = self._read_length(_INT)
            partitions += [TopicPartition(topic, self._unpack(_INT)[0]) for _ in range(count)]
            self._read_tags()
        return partitions

    def _read_tags(self) -> dict[str, int]:
        fields: dict[str, int] = {}
        for _ in range(self._read_varint() if self._compact else 0):
            tag, size = self._read_varint(), self._read_varint()
            if tag in _TAGS:
                name, layout, _default = _TAGS[tag]
                (fields[name],) = layout.unpack_from(self._value, self._position)
            self._position += size
        return fields
