"""Messages of PostgreSQL's plugin pgoutput, protocol version 1, read from bytes. No I/O here.

Each comes inside an `XLogData` of the replication stream; positions here count from its first byte:

    w · log position i64 · end of the log i64 · clock i64 · message

    B · commit position i64 · commit time i64 · transaction i32
    C · flags i8 · commit position i64 · end position i64 · commit time i64
    R · relation i32 · schema\\0 · table\\0 · identity · count i16 (flags i8 · name\\0 · type i32 · mod i32)*
    I · relation i32 · N tuple
    U · relation i32 · [K|O tuple] · N tuple
    D · relation i32 · K|O tuple
    T · count i32 · options i8 · (relation i32)*

A tuple is a count i16 and for each column n (null), u (unchanged and not sent), or t · length i32 · text.
Times are microseconds since 2000.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

MESSAGE: Final = 25
"""Where the message begins in an XLogData."""
EPOCH_MS: Final = 946_684_800_000
"""The year 2000 in the milliseconds of everybody else."""

_BEGIN: Final = struct.Struct(">qqi")
_COMMIT: Final = struct.Struct(">bqqq")
_COLUMN: Final = struct.Struct(">ii")
_LENGTH: Final = struct.Struct(">i").unpack_from
_TEXT: Final = ord("t")
_NULL: Final = ord("n")


class Unchanged:
    """The value of a large column that an update left as it was, and that was therefore not sent."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = bytes | None | Unchanged
Tuple = list[Value]


class Begin(NamedTuple):
    """A transaction begins; it is known when and where it commits."""

    position: int
    commit_ms: int
    xid: int


class Commit(NamedTuple):
    """A transaction ends."""

    position: int
    end: int


class Column(NamedTuple):
    """A column of a relation."""

    name: str
    type_oid: int
    is_key: bool
    """Whether it belongs to what identifies a row in updates and deletes."""


class RelationMessage(NamedTuple):
    """A table as it was when the changes that follow were made."""

    oid: int
    schema: str
    table: str
    identity: str
    """d for the primary key, f for the full row, i for an index, n for nothing."""
    columns: tuple[Column, ...]


def read_begin(data: bytes) -> Begin:
    """A message B."""
    position, time_us, xid = _BEGIN.unpack_from(data, MESSAGE + 1)
    return Begin(position, time_us // 1000 + EPOCH_MS, xid & 0xFFFFFFFF)


def read_commit(data: bytes) -> Commit:
    """A message C."""
    _, position, end, _ = _COMMIT.unpack_from(data, MESSAGE + 1)
    return Commit(position, end)


def read_relation(data: bytes) -> RelationMessage:
    """A message R."""
    oid = int.from_bytes(data[MESSAGE + 1 : MESSAGE + 5], "big")
    schema, at = _name(data, MESSAGE + 5)
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
    """The relations of a message T, as their bytes."""
    count = int.from_bytes(data[MESSAGE + 1 : MESSAGE + 5], "big")
    first = MESSAGE + 6
    return [data[first + 4 * index : first + 4 * index + 4] for index in range(count)]


def read_tuple(data: bytes, at: int) -> tuple[Tuple, int]:
    """The values of a tuple, and the position after it.

    This is called for every row: it makes no objects but the values.
    """
    count = data[at] << 8 | data[at + 1]
    at += 2
    values: Tuple = []
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
