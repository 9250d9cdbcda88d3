"""Decodes the messages of PostgreSQL's output plugin pgoutput, protocol version 1. No I/O.

Each message is inside an `XLogData` message of the replication stream; indexes count from its first byte:

    w · LSN i64 · end of the WAL i64 · clock i64 · message

    B · commit LSN i64 · commit time i64 · transaction i32
    C · flags i8 · commit LSN i64 · end LSN i64 · commit time i64
    R · relation i32 · schema\\0 · table\\0 · identity · count i16 (flags i8 · name\\0 · type i32 · mod i32)*
    I · relation i32 · N tuple
    U · relation i32 · [K|O tuple] · N tuple
    D · relation i32 · K|O tuple
    T · count i32 · options i8 · (relation i32)*
    M · flags i8 · LSN i64 · prefix\\0 · length i32 · content

A tuple is a count i16 and for each column n (null), u (unchanged and not sent), or t · length i32 · text.
Times are microseconds since 2000.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MESSAGE_START: Final = 25
"""The index of the message in an XLogData message."""
EPOCH_MS: Final = 946_684_800_000
"""PostgreSQL's epoch, 2000-01-01, in Unix time."""

_BEGIN: Final = struct.Struct(">qqi")
_COMMIT: Final = struct.Struct(">bqqq")
_COLUMN: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i").unpack_from
_TEXT: Final = ord("t")
_NULL: Final = ord("n")


class Unchanged:
    """An unchanged TOAST value, which is not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = bytes | None | Unchanged
TupleData = list[Value]


class BeginMessage(NamedTuple):
    """The start of a transaction, with the position and time of its commit."""

    position: int
    commit_ms: int
    xid: int


class LogicalMessage(NamedTuple):
    """What an application emitted with `pg_logical_emit_message`."""

    is_transactional: bool
    prefix: str
    content: bytes


def read_message(data: bytes) -> LogicalMessage:
    """Decode a logical message."""
    at = MESSAGE_START + 1
    prefix_end = data.index(0, at + 9)
    (length,) = _LENGTH(data, prefix_end + 1)
    content = data[prefix_end + 5 : prefix_end + 5 + length]
    return LogicalMessage(bool(data[at] & 1), data[at + 9 : prefix_end].decode("utf-8", "replace"), content)


class CommitMessage(NamedTuple):
    """The end of a transaction."""

    position: int
    end: int


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    is_key: bool
    """Whether it belongs to the replica identity."""


class RelationMessage(NamedTuple):
    """The columns of a table at the time of the changes that follow."""

    oid: int
    schema: str
    table: str
    identity: str
    """The replica identity: d default (primary key), f full, i index, n nothing."""
    columns: tuple[Column, ...]


def read_begin(data: bytes) -> BeginMessage:
    """Decode a Begin message."""
    position, time_us, xid = _BEGIN.unpack_from(data, MESSAGE_START + 1)
    return BeginMessage(position, time_us // 1000 + EPOCH_MS, xid & 0xFFFFFFFF)


def read_commit(data: bytes) -> CommitMessage:
    """Decode a Commit message."""
    _, position, end, _ = _COMMIT.unpack_from(data, MESSAGE_START + 1)
    return CommitMessage(position, end)


def read_relation(data: bytes) -> RelationMessage:
    """Decode a Relation message."""
    oid = int.from_bytes(data[MESSAGE_START + 1 : MESSAGE_START + 5], "big")
    schema, at = _name(data, MESSAGE_START + 5)
    table, at = _name(data, at)
    identity, count = chr(data[at]), int.from_bytes(data[at + 1 : at + 3], "big")
    at += 3
    columns = []
    for _ in range(count):
        is_key = bool(data[at] & 1)
        name, at = _name(data, at + 1)
        type_oid, _modifier = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        columns.append(Column(name, type_oid & 0xFFFFFFFF, is_key))
    return RelationMessage(oid, schema or "pg_catalog", table, identity, tuple(columns))


def read_truncated(data: bytes) -> list[bytes]:
    """The relation ids of a Truncate message, as bytes."""
    count = int.from_bytes(data[MESSAGE_START + 1 : MESSAGE_START + 5], "big")
    first = MESSAGE_START + 6
    return [data[first + 4 * index : first + 4 * index + 4] for index in range(count)]


def read_tuple(data: bytes, at: int) -> tuple[TupleData, int]:
    """The values of a tuple, and the index after it.

    Called for every row: it allocates nothing but the values.
    """
    count = data[at] << 8 | data[at + 1]
    at += 2
    values: TupleData = []
    append = values.append
    for _ in range(count):
        kind = data[at]
        if kind == _TEXT:
            start = at + 5
            at = start + _LENGTH(data, at + 1)[0]
            append(data[start:at])
        else:
            append(None if kind == _NULL else UNCHANGED)
            at += 1
    return values, at


def _name(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1
