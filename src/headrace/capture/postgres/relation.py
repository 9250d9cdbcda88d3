"""A captured table: changes to its rows become events in Debezium's envelope.

{"before": …, "after": …, "source": {…}, "op": "c", "ts_ms": …}

`op` is r for a row of a snapshot, c, u, d for one that was inserted, updated, deleted, and t for one that a
TRUNCATE took. A delete is followed by a record without a value, so that compaction forgets the key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from headrace.capture.errors import CaptureError
from headrace.capture.postgres.pgoutput import UNCHANGED, RelationMessage, Unchanged
from headrace.capture.postgres.row_templates import Columns, RowKinds
from headrace.capture.postgres.values import octets, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.postgres.catalog import Catalog
    from headrace.capture.postgres.pgoutput import Tuple
    from headrace.capture.postgres.values import Convert
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import Sink

NOTHING: Final = b"null"
_EVENT: Final = b'{"before":%b,"after":%b,"source":'
_CHANGED: Final = b',"ts_ms":%d,"txId":%d,"lsn":%d},"op":"%b","ts_ms":%d}'
_WAS_THERE: Final = b',"ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}'
_NEW: Final = b'{"before":null,"after":%b,"source":%b,"ts_ms":%d,"txId":%d,"lsn":%%d},"op":"%b","ts_ms":%d}'


class Envelopes:
    """The events of one table; rows are given as JSON."""

    __slots__ = ("_change", "_snapshot", "_source")

    def __init__(self, *, name: str, database: str, schema: str, table: str) -> None:
        def source(snapshot: str) -> bytes:
            fixed = {
                "version": "headrace",
                "connector": "postgresql",
                "name": name,
                "snapshot": snapshot,
                "db": database,
                "schema": schema,
                "table": table,
            }
            text = json.dumps(fixed, ensure_ascii=False, separators=(",", ":"))
            return text[:-1].replace("%", "%%").encode()

        self._source = source("false")
        self._change = _EVENT + self._source + _CHANGED
        self._snapshot = _EVENT + source("true") + _WAS_THERE

    def change(
        self, op: bytes, before: bytes, after: bytes, *, commit_ms: int, xid: int, lsn: int, now_ms: int
    ) -> bytes:
        """An event of the database's log."""
        return self._change % (before, after, commit_ms, xid, lsn, op, now_ms)

    def template(self, op: bytes, after: bytes, *, commit_ms: int, xid: int, now_ms: int) -> bytes:
        """What formats events of one transaction that have no `before`: the fields of `after`, then `lsn`."""
        return _NEW % (after, self._source, commit_ms, xid, op, now_ms)

    def snapshot(self, row: bytes, *, time_ms: int, lsn: int) -> bytes:
        """An event for a row that was there before."""
        return self._snapshot % (NOTHING, row, time_ms, lsn, time_ms)


UNAVAILABLE: Final = b'"__headrace_unavailable_value"'
"""What stands for a large value that an update left unchanged, where the database did not send it."""
MASKED: Final = b'"****"'


@dataclass(slots=True)
class Transaction:
    """The transaction of the database that is read."""

    position: int
    """Of its commit."""
    commit_ms: int
    xid: int
    time_ms: int
    """The time of its records, which never goes back."""
    now_ms: int


class Relation:
    """One version of one table's columns."""

    def __init__(
        self,
        message: RelationMessage,
        *,
        table: str,
        key: Sequence[str],
        topic: str,
        since: int,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        sink: Sink,
    ) -> None:
        # `table` is the name that the settings know: a table that was renamed since is masked as before.
        self.topic = topic
        self.since = since
        """Transactions that committed before this are in the snapshot."""
        self._sink = sink
        self._is_full = message.identity == "f"
        self._put = sink.open_topic(topic, compacted=bool(key))
        self._envelopes = Envelopes(
            name=settings.name, database=database, schema=message.schema, table=message.table
        )
        names = [column.name for column in message.columns]
        self._sent_with_old = [self._is_full or column.is_key for column in message.columns]
        converters = [catalog.converter(column.type_oid) for column in message.columns]
        self._key = RowKey([names.index(name) for name in key], names, converters)
        shaped = [
            _shaped(f"{table}.{name}", converter, settings)
            for name, converter in zip(names, converters, strict=True)
        ]
        chosen = _chosen(table, names, key, settings)
        self._row = Row([index for index in range(len(names)) if names[index] in chosen], names, shaped)
        known = [index for index, column in enumerate(message.columns) if column.is_key]
        self._identity = Row([index for index in known if names[index] in chosen], names, shaped)
        is_whole = len(chosen) == len(names)
        columns = Columns(names, shaped, self._key.indexes)
        self._kinds = RowKinds(columns, self._envelopes) if is_whole else None

    def snapshot(self, values: Tuple, lsn: int, time_ms: int) -> bytes | None:
        """Write a row that was there; its key."""
        key = self._key.of(values)
        self._put(key, self._envelopes.snapshot(self._row.of(values), time_ms=time_ms, lsn=lsn), time_ms)
        return key

    def write_known(self, data: bytes, at: Transaction) -> bool:
        """Write the new row in a message if it is of the kind of the last one; whether it is."""
        made = None if self._kinds is None else self._kinds.event(data, at)
        if made is None:
            return False
        self._put(*made, at.time_ms)
        return True

    def insert(self, values: Tuple, lsn: int, at: Transaction) -> None:
        """Write that a row is new."""
        if self._kinds is not None:
            self._kinds.learn(values)
        self._write(self._key.of(values), b"c", NOTHING, self._row.of(values), lsn, at)

    def update(self, old: Tuple | None, values: Tuple, lsn: int, at: Transaction) -> None:
        """Write that a row has changed; where its key has, that one is gone and another one new.

        A large value that did not change is not sent again; a part of the key is sent with the old row then.
        """
        if old is not None:
            values = [
                before if value is UNCHANGED and is_sent else value
                for value, before, is_sent in zip(values, old, self._sent_with_old, strict=True)
            ]
        if self._kinds is not None:
            self._kinds.learn(values)
        key = self._key.of(values)
        before = NOTHING if old is None else self._before(old)
        if old is not None and key is not None and (gone := self._key.of(old)) != key:
            self._remove(gone, b"d", before, lsn, at)
            self._write(key, b"c", NOTHING, self._row.of(values), lsn, at)
        else:
            self._write(key, b"u", before, self._row.of(values), lsn, at)

    def delete(self, old: Tuple, lsn: int, at: Transaction) -> None:
        """Write that a row is gone."""
        self._remove(self._key.of(old), b"d", self._before(old), lsn, at)

    def truncate(self, lsn: int, at: Transaction) -> None:
        """Write that each row is gone."""
        if not self._key.indexes:
            self._write(None, b"t", NOTHING, NOTHING, lsn, at)
            return
        for key in sorted(self._sink.live_keys(self.topic)):
            self._remove(key, b"t", NOTHING, lsn, at)

    def forget(self, key: bytes, lsn: int, at: Transaction) -> None:
        """Write that a row is gone of which only the key is known."""
        self._remove(key, b"d", NOTHING, lsn, at)

    def _before(self, old: Tuple) -> bytes:
        return self._row.of(old) if self._is_full else self._identity.of(old)

    def _write(
        self, key: bytes | None, op: bytes, before: bytes, after: bytes, lsn: int, at: Transaction
    ) -> None:
        event = self._envelopes.change(
            op, before, after, commit_ms=at.commit_ms, xid=at.xid, lsn=lsn, now_ms=at.now_ms
        )
        self._put(key, event, at.time_ms)

    def _remove(self, key: bytes | None, op: bytes, before: bytes, lsn: int, at: Transaction) -> None:
        self._write(key, op, before, NOTHING, lsn, at)
        if key is not None:
            self._put(key, None, at.time_ms)


class Row:
    """Makes a JSON document of some of a tuple's values."""

    __slots__ = ("_converters", "_indexes", "_template")

    def __init__(
        self, indexes: list[int], names: Sequence[str], converters: Sequence[Convert | None]
    ) -> None:
        fields = ",".join(f"{json.dumps(names[index], ensure_ascii=False)}:\0" for index in indexes)
        self._template = f"{{{fields}}}".replace("%", "%%").replace("\0", "%b").encode()
        self._converters = [converters[index] for index in indexes]
        self._indexes = None if indexes == list(range(len(names))) else indexes

    def of(self, values: Tuple) -> bytes:
        """The document; for every row one loop and one formatting."""
        if self._indexes is not None:
            values = [values[index] for index in self._indexes]
        if UNCHANGED in values:
            return self._template % tuple(
                UNAVAILABLE if isinstance(value, Unchanged) else _converted(value, convert)
                for value, convert in zip(values, self._converters, strict=True)
            )
        return self._template % tuple(
            [
                b"null" if value is None else value if convert is None else convert(value)  # type: ignore[arg-type]  # what is unchanged was looked for
                for value, convert in zip(values, self._converters, strict=False)
            ]
        )


class RowKey:
    """Makes a record's key of a tuple's values: the text of one column, or a JSON document of several."""

    def __init__(
        self, indexes: list[int], names: Sequence[str], converters: Sequence[Convert | None]
    ) -> None:
        self.indexes = indexes
        self._single = indexes[0] if len(indexes) == 1 else None
        self._document = Row(indexes, names, converters)
        self._plain = _plain(converters[indexes[0]]) if len(indexes) == 1 else None

    def of(self, values: Tuple) -> bytes | None:
        """The key; None where the table has none."""
        if self._single is not None:
            value = values[self._single]
            if isinstance(value, Unchanged):
                raise _no_key()
            return value if value is None or self._plain is None else self._plain(value)
        if not self.indexes:
            return None
        if UNCHANGED in [values[index] for index in self.indexes]:
            raise _no_key()
        return self._document.of(values)


def _no_key() -> CaptureError:
    return CaptureError(
        "PostgreSQL did not send the key of a row that was updated, as versions before 14.2 do with keys "
        "that are stored out of line: install a newer minor version, drop the capture, and start it again."
    )


def _plain(convert: Convert | None) -> Convert | None:
    """What makes the text of a key; None where it is the database's own."""
    if convert is None or convert is text:
        return None
    if convert is octets:
        return lambda value: bytes.fromhex(value[2:].decode())

    def plain(value: bytes) -> bytes:
        document = convert(value)
        found = json.loads(document) if document.startswith(b'"') else None
        return document if found is None else str(found).encode()

    return plain


def _converted(value: bytes | None, convert: Convert | None) -> bytes:
    if value is None:
        return b"null"
    return value if convert is None else convert(value)


def _shaped(name: str, convert: Convert | None, settings: CaptureSettings) -> Convert | None:
    """The converter of a column, or what hides its values."""
    if name in settings.mask:
        return lambda _: MASKED
    if name in settings.hash:
        salt = settings.salt.encode()
        return lambda value: b'"%b"' % sha256(salt + value).hexdigest().encode()
    return convert


def _chosen(table: str, names: Sequence[str], key: Sequence[str], settings: CaptureSettings) -> set[str]:
    """The names of the columns that are captured; those of the key always are."""
    chosen = {name.removeprefix(f"{table}.") for name in settings.columns if name.startswith(f"{table}.")}
    return (chosen | set(key)) & set(names) if chosen else set(names)


def hidden_columns(table: str, message: RelationMessage, settings: CaptureSettings) -> list[str]:
    """The columns of a table that are masked or hashed."""
    hidden = {*settings.mask, *settings.hash}
    return [column.name for column in message.columns if f"{table}.{column.name}" in hidden]


def key_of(message: RelationMessage, primary_key: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """The columns that are the key of a table's records: those that identify a row in the log.

    A full row identifies too, but the primary key is the better name for it; without one there is no key.
    """
    if message.identity != "f":
        return tuple(column.name for column in message.columns if column.is_key)
    names = {column.name for column in message.columns}
    found = tuple(primary_key())
    return found if set(found) <= names else ()
