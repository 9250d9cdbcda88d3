"""A captured table: changes to its rows become events in Debezium's envelope.

    {"before": …, "after": …, "source": {…}, "op": "c", "ts_ms": …}

`op` is r for a row of a snapshot, c, u and d for an insert, update and delete, and t for a row that TRUNCATE
removed. A delete is followed by a tombstone, so that compaction removes the key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from headrace.capture.postgres.pgoutput import UNCHANGED, RelationMessage, Unchanged
from headrace.capture.postgres.values import RowTemplates, TableColumns, bytea, text
from headrace.capture.source import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.postgres.catalog import Catalog
    from headrace.capture.postgres.pgoutput import TupleData
    from headrace.capture.postgres.values import Converter
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import ChangeWriter

NULL_JSON: Final = b"null"
_EVENT: Final = b'{"before":%b,"after":%b,"source":'
_CHANGED: Final = b',"ts_ms":%d,"txId":%d,"lsn":%d},"op":"%b","ts_ms":%d}'
_WAS_THERE: Final = b',"ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}'
_NEW: Final = b'{"before":null,"after":%b,"source":%b,"ts_ms":%d,"txId":%d,"lsn":%%d},"op":"%b","ts_ms":%d}'


class Envelopes:
    """Formats the events of one table; rows are passed as JSON."""

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
        """The event of a change."""
        return self._change % (before, after, commit_ms, xid, lsn, op, now_ms)

    def template(self, op: bytes, after: bytes, *, commit_ms: int, xid: int, now_ms: int) -> bytes:
        """A template for events of one transaction without `before`: the fields of `after`, then `lsn`."""
        return _NEW % (after, self._source, commit_ms, xid, op, now_ms)

    def snapshot(self, row: bytes, *, time_ms: int, lsn: int) -> bytes:
        """The event of a row of a snapshot."""
        return self._snapshot % (NULL_JSON, row, time_ms, lsn, time_ms)


UNAVAILABLE: Final = b'"__headrace_unavailable_value"'
"""The placeholder of an unchanged TOAST value, which PostgreSQL does not send."""
MASKED: Final = b'"****"'


@dataclass(slots=True)
class SourceTransaction:
    """The transaction of the database that is being read."""

    position: int
    """The position of its commit."""
    commit_ms: int
    xid: int
    time_ms: int
    """The timestamp of its records, which never decreases."""
    now_ms: int


class Relation:
    """One version of a table's columns, and the writer of its events."""

    def __init__(
        self,
        message: RelationMessage,
        *,
        table: str,
        key: Sequence[str],
        topic: str,
        start_position: int,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        writer: ChangeWriter,
    ) -> None:
        # `table` is the name in the settings: a renamed table keeps its masks.
        self.topic = topic
        self.start_position = start_position
        """Transactions that committed before this position are in the snapshot."""
        self._writer = writer
        self._is_full = message.identity == "f"
        self._append = writer.open_topic(topic, compacted=bool(key))
        self._envelopes = Envelopes(
            name=settings.name, database=database, schema=message.schema, table=message.table
        )
        names = [column.name for column in message.columns]
        self._sent_with_old = [self._is_full or column.is_key for column in message.columns]
        converters = [catalog.converter(column.type_oid) for column in message.columns]
        self._key = KeyFormatter([names.index(name) for name in key], names, converters)
        masked = [
            _column_converter(f"{table}.{name}", converter, settings)
            for name, converter in zip(names, converters, strict=True)
        ]
        captured = _captured_columns(table, names, key, settings)
        self._row = RowFormatter(
            [index for index in range(len(names)) if names[index] in captured], names, masked
        )
        known = [index for index, column in enumerate(message.columns) if column.is_key]
        self._identity = RowFormatter([index for index in known if names[index] in captured], names, masked)
        is_whole = len(captured) == len(names)
        columns = TableColumns(names, masked, self._key.indexes)
        self._templates = RowTemplates(columns, self._envelopes) if is_whole else None

    def snapshot(self, values: TupleData, lsn: int, time_ms: int) -> bytes | None:
        """Write a row of the snapshot; returns its key."""
        key = self._key.format(values)
        self._append(
            key, self._envelopes.snapshot(self._row.format(values), time_ms=time_ms, lsn=lsn), time_ms
        )
        return key

    def write_from_template(self, data: bytes, at: SourceTransaction) -> bool:
        """Write the new row in a message if the last row's template matches; returns whether it does."""
        record = None if self._templates is None else self._templates.event(data, at)
        if record is None:
            return False
        self._append(*record, at.time_ms)
        return True

    def insert(self, values: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Write the event of an insert."""
        if self._templates is not None:
            self._templates.learn(values)
        self._write(self._key.format(values), b"c", NULL_JSON, self._row.format(values), lsn, at)

    def update(self, old: TupleData | None, values: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Write the event of an update; an update of the key is a delete and an insert.

        An unchanged TOAST value is not sent. If it is part of the key, it is in the old row.
        """
        if old is not None:
            values = [
                before if value is UNCHANGED and is_sent else value
                for value, before, is_sent in zip(values, old, self._sent_with_old, strict=True)
            ]
        if self._templates is not None:
            self._templates.learn(values)
        key = self._key.format(values)
        before = NULL_JSON if old is None else self._before(old)
        if old is not None and key is not None and (old_key := self._key.format(old)) != key:
            self._remove(old_key, b"d", before, lsn, at)
            self._write(key, b"c", NULL_JSON, self._row.format(values), lsn, at)
        else:
            self._write(key, b"u", before, self._row.format(values), lsn, at)

    def delete(self, old: TupleData, lsn: int, at: SourceTransaction) -> None:
        """Write the event of a delete, and a tombstone."""
        self._remove(self._key.format(old), b"d", self._before(old), lsn, at)

    def truncate(self, lsn: int, at: SourceTransaction) -> None:
        """Write an event and a tombstone for every row."""
        if not self._key.indexes:
            self._write(None, b"t", NULL_JSON, NULL_JSON, lsn, at)
            return
        for key in sorted(self._writer.live_keys(self.topic)):
            self._remove(key, b"t", NULL_JSON, lsn, at)

    def delete_key(self, key: bytes, lsn: int, at: SourceTransaction) -> None:
        """Write the delete of a row of which only the key is known."""
        self._remove(key, b"d", NULL_JSON, lsn, at)

    def _before(self, old: TupleData) -> bytes:
        return self._row.format(old) if self._is_full else self._identity.format(old)

    def _write(
        self, key: bytes | None, op: bytes, before: bytes, after: bytes, lsn: int, at: SourceTransaction
    ) -> None:
        event = self._envelopes.change(
            op, before, after, commit_ms=at.commit_ms, xid=at.xid, lsn=lsn, now_ms=at.now_ms
        )
        self._append(key, event, at.time_ms)

    def _remove(self, key: bytes | None, op: bytes, before: bytes, lsn: int, at: SourceTransaction) -> None:
        self._write(key, op, before, NULL_JSON, lsn, at)
        if key is not None:
            self._append(key, None, at.time_ms)


class RowFormatter:
    """Formats columns of a tuple as a JSON document."""

    __slots__ = ("_converters", "_indexes", "_template")

    def __init__(
        self, indexes: list[int], names: Sequence[str], converters: Sequence[Converter | None]
    ) -> None:
        fields = ",".join(f"{json.dumps(names[index], ensure_ascii=False)}:\0" for index in indexes)
        self._template = f"{{{fields}}}".replace("%", "%%").replace("\0", "%b").encode()
        self._converters = [converters[index] for index in indexes]
        self._indexes = None if indexes == list(range(len(names))) else indexes

    def format(self, values: TupleData) -> bytes:
        """The document, by one loop and one formatting operation."""
        if self._indexes is not None:
            values = [values[index] for index in self._indexes]
        if UNCHANGED in values:
            return self._template % tuple(
                UNAVAILABLE if isinstance(value, Unchanged) else _converted(value, convert)
                for value, convert in zip(values, self._converters, strict=True)
            )
        return self._template % tuple(
            [
                b"null" if value is None else value if convert is None else convert(value)  # type: ignore[arg-type]  # unchanged values were handled above
                for value, convert in zip(values, self._converters, strict=False)
            ]
        )


class KeyFormatter:
    """Formats the key of a record: the text of one column, or a JSON document of several."""

    def __init__(
        self, indexes: list[int], names: Sequence[str], converters: Sequence[Converter | None]
    ) -> None:
        self.indexes = indexes
        self._single = indexes[0] if len(indexes) == 1 else None
        self._document = RowFormatter(indexes, names, converters)
        self._plain = _plain(converters[indexes[0]]) if len(indexes) == 1 else None

    def format(self, values: TupleData) -> bytes | None:
        """The key; None if the table has none."""
        if self._single is not None:
            value = values[self._single]
            if isinstance(value, Unchanged):
                raise _no_key()
            return value if value is None or self._plain is None else self._plain(value)
        if not self.indexes:
            return None
        if UNCHANGED in [values[index] for index in self.indexes]:
            raise _no_key()
        return self._document.format(values)


def _no_key() -> CaptureError:
    return CaptureError(
        "PostgreSQL did not send the key of an updated row: versions before 14.2 omit keys that are TOASTed. "
        "Install a newer minor version, drop the capture, and start it again."
    )


def _plain(convert: Converter | None) -> Converter | None:
    """The converter to the text of a key; None if it is PostgreSQL's own text."""
    if convert is None or convert is text:
        return None
    if convert is bytea:
        return lambda value: bytes.fromhex(value[2:].decode())

    def plain(value: bytes) -> bytes:
        document = convert(value)
        found = json.loads(document) if document.startswith(b'"') else None
        return document if found is None else str(found).encode()

    return plain


def _converted(value: bytes | None, convert: Converter | None) -> bytes:
    if value is None:
        return b"null"
    return value if convert is None else convert(value)


def _column_converter(name: str, convert: Converter | None, settings: CaptureSettings) -> Converter | None:
    """The converter of a column; for a masked or hashed column, the one that hides its values."""
    if name in settings.mask:
        return lambda _: MASKED
    if name in settings.hash:
        salt = settings.salt.encode()
        return lambda value: b'"%b"' % sha256(salt + value).hexdigest().encode()
    return convert


def _captured_columns(
    table: str, names: Sequence[str], key: Sequence[str], settings: CaptureSettings
) -> set[str]:
    """The captured columns, which always include the key."""
    captured = {name.removeprefix(f"{table}.") for name in settings.columns if name.startswith(f"{table}.")}
    return (captured | set(key)) & set(names) if captured else set(names)


def masked_columns(table: str, message: RelationMessage, settings: CaptureSettings) -> list[str]:
    """The masked and hashed columns of a table."""
    hidden = {*settings.mask, *settings.hash}
    return [column.name for column in message.columns if f"{table}.{column.name}" in hidden]


def key_columns(message: RelationMessage, primary_key: Callable[[], Sequence[str]]) -> tuple[str, ...]:
    """The key columns of a table's records: the replica identity.

    With REPLICA IDENTITY FULL, the primary key; if there is none, the records have no keys.
    """
    if message.identity != "f":
        return tuple(column.name for column in message.columns if column.is_key)
    names = {column.name for column in message.columns}
    found = tuple(primary_key())
    return found if set(found) <= names else ()
