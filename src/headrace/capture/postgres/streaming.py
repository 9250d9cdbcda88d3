"""The stream of changes: from messages of the replication protocol to records."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, Protocol

from headrace.capture.postgres.outbox import Outbox
from headrace.capture.postgres.pgoutput import (
    MESSAGE_START,
    read_begin,
    read_commit,
    read_message,
    read_relation,
    read_truncated,
    read_tuple,
)
from headrace.capture.postgres.relation import Relation, SourceTransaction, key_columns, masked_columns
from headrace.capture.postgres.replication import translated_errors
from headrace.capture.source import CaptureError, DatabaseUnavailable
from headrace.tracing import HEADER, traceparent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import CaptureOffset
    from headrace.capture.postgres.catalog import Catalog, CatalogTable
    from headrace.capture.postgres.pgoutput import RelationMessage
    from headrace.capture.postgres.replication import ReplicationConnection
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import ChangeWriter
    from headrace.tracing import Span, Tracer

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = map(ord, "BCRIUDTM")
ROW_CHANGES: Final = frozenset({INSERT, UPDATE, DELETE})
RELATION_AT: Final = slice(MESSAGE_START + 1, MESSAGE_START + 5)
TUPLE: Final = MESSAGE_START + 6
NEW: Final = ord("N")


class ChangeDecoder:
    """Decodes messages, and passes records and the ends of transactions to the writer."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        offset: CaptureOffset,
        tables: Sequence[CatalogTable],
        writer: ChangeWriter,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._span: Span | None = None
        self._catalog = catalog
        self._settings = settings
        self._database = database
        self._tables = offset.tables
        self._start = offset.position
        self._oids = {table.relation.oid: table.name for table in tables}
        self._masked_counts = {
            table.name: len(masked_columns(table.name, table.relation, settings)) for table in tables
        }
        self._writer = writer
        self._relations: dict[bytes, Relation | Outbox | None] = {}
        self._at = SourceTransaction(0, 0, 0, offset.time_ms, 0)
        self.in_transaction = False
        """Whether a transaction is being read."""
        self.end = offset.position
        """The end position of the last transaction."""

    def read(self, data: bytes) -> None:
        """Decode one XLogData message."""
        kind = data[MESSAGE_START]
        if kind in ROW_CHANGES:
            relation = self._relations[data[RELATION_AT]]
            if relation is None or self._at.position < relation.start_position:
                return
            if not relation.write_from_template(data, self._at):
                self._write(relation, kind, data)
        elif kind == BEGIN:
            self._begin(data)
        elif kind == COMMIT:
            self._commit(data)
        elif kind == RELATION:
            message = read_relation(data)
            self._relations[data[RELATION_AT]] = self._relation(message)
        elif kind == TRUNCATE:
            self._truncate(data)
        elif kind == MESSAGE:
            self._read_message(data)

    def _read_message(self, data: bytes) -> None:
        """The traceparent of the transaction, which the application emitted as a logical message."""
        message = read_message(data)
        if self.in_transaction and message.is_transactional and message.prefix == HEADER:
            parent = traceparent_of([(HEADER, message.content)])
            if parent is not None:
                self._trace_transaction(parent)

    def _trace_transaction(self, parent: str | None) -> None:
        """Start the span of a transaction; without a tracer its records carry what the application said."""
        self._span = None
        if self._tracer is not None:
            at = self._at
            attributes: dict[str, str | int] = {
                "db.system": "postgresql",
                "db.namespace": self._database,
                "headrace.capture": self._settings.name,
                "headrace.xid": at.xid,
            }
            self._span = self._tracer.start(
                f"capture {self._settings.name}",
                "producer",
                parent=parent,
                start_ms=at.commit_ms,
                attributes=attributes,
            )
            parent = self._span.traceparent
        self._writer.set_traceparent(parent)

    def _begin(self, data: bytes) -> None:
        begin = read_begin(data)
        now_ms = time.time_ns() // 1_000_000
        # A clock that was set back, or that is ahead of the broker's, must not reorder changes.
        time_ms = max(self._at.time_ms, min(begin.commit_ms, now_ms))
        self._at = SourceTransaction(begin.position, begin.commit_ms, begin.xid, time_ms, now_ms)
        self.in_transaction = True
        if self._tracer is not None:
            self._trace_transaction(None)

    def _commit(self, data: bytes) -> None:
        commit = read_commit(data)
        self.in_transaction = False
        if commit.end > self.end:
            self.end = commit.end
            self._writer.end_transaction(commit.end)
        self._writer.set_traceparent(None)
        if self._span is not None:
            self._span.end()
            self._span = None

    def _write(self, relation: Relation | Outbox, kind: int, data: bytes) -> None:
        lsn = int.from_bytes(data[1:9], "big")
        if kind == INSERT:
            relation.insert(read_tuple(data, TUPLE)[0], lsn, self._at)
        elif kind == DELETE:
            relation.delete(read_tuple(data, TUPLE)[0], lsn, self._at)
        else:
            old, at = None, MESSAGE_START + 5
            if data[at] != NEW:
                old, at = read_tuple(data, at + 1)
            relation.update(old, read_tuple(data, at + 1)[0], lsn, self._at)

    def _truncate(self, data: bytes) -> None:
        lsn = int.from_bytes(data[1:9], "big")
        for oid in read_truncated(data):
            relation = self._relations.get(oid)
            if relation is not None and self._at.position >= relation.start_position:
                relation.truncate(lsn, self._at)

    def _relation(self, message: RelationMessage) -> Relation | Outbox | None:
        name = f"{message.schema}.{message.table}"
        # A renamed table keeps its topic.
        name = name if name in self._tables else self._oids.get(message.oid, name)
        if name not in self._tables:
            return None
        key = key_columns(message, lambda: self._catalog.primary_key(message.oid))
        if name != self._settings.outbox:
            self._check_key(name, message, key)
            self._check_masked_columns(name, message)
        return make_relation(
            message,
            name,
            key=key,
            topic=self._tables[name].topic,
            start_position=max(self._tables[name].position, self._start),
            catalog=self._catalog,
            settings=self._settings,
            database=self._database,
            writer=self._writer,
        )

    def _check_key(self, name: str, message: RelationMessage, key: tuple[str, ...]) -> None:
        """Stop the capture if the key of the table is not that of the records in its topic."""
        known = self._tables[name].key
        names = {column.name for column in message.columns}
        # The key of one column is its text, without the name of the column.
        is_renamed = len(known) == len(key) == 1 and known[0] not in names
        if key == known or is_renamed:
            return
        raise CaptureError(
            f"the key of {name} (its primary key, or its replica identity) has changed from "
            f"({', '.join(known) or 'none'}) to ({', '.join(key) or 'none'}), and the records in "
            f"{self._tables[name].topic!r} have the old key. Revert the change; or run the capture once "
            "without the table, delete its topic, and add the table again: it gets a new snapshot."
        )

    def _check_masked_columns(self, name: str, message: RelationMessage) -> None:
        """Stop the capture if a masked column was renamed: its values would become visible."""
        expected = self._masked_counts.get(name, 0)
        if len(masked_columns(name, message, self._settings)) < expected:
            raise CaptureError(
                f"a masked or hashed column of {name} was renamed or dropped. The capture stops before this "
                "change, so that no value becomes visible: keep the old name in --mask or --hash, add the "
                "new name, and start the capture again."
            )


def make_relation(
    message: RelationMessage,
    name: str,
    *,
    key: tuple[str, ...],
    topic: str,
    start_position: int,
    catalog: Catalog,
    settings: CaptureSettings,
    database: str,
    writer: ChangeWriter,
) -> Relation | Outbox:
    """The handler of a table's rows: a `Relation`, or the `Outbox`."""
    if name == settings.outbox:
        return Outbox(message, topic=topic, start_position=start_position, writer=writer)
    return Relation(
        message,
        table=name,
        key=key,
        topic=topic,
        start_position=start_position,
        catalog=catalog,
        settings=settings,
        database=database,
        writer=writer,
    )


STATUS_INTERVAL_S: Final = 1.0
"""How often a changed position is confirmed to the server."""
REPLY_INTERVAL_S: Final = 0.02
"""How often a capture with `once` requests a keepalive, which reports the server's position."""
WAL_CHECK_INTERVAL_S: Final = 10.0
"""How often the retained WAL is checked."""
POLL_INTERVAL_S: Final = 0.25
XLOG: Final = ord("w")
_KEEPALIVE: Final = struct.Struct(">cqqb")


class StreamOwner(Protocol):
    """The part of the source that the stream uses."""

    stopped: Callable[[], bool]

    @property
    def committed_position(self) -> int:
        """The position up to which everything is committed."""

    def check_retained_wal(self) -> None:
        """Check how much WAL the slot retains."""


class ReplicationStream:
    """Reads the stream of changes until it ends or the capture is stopped."""

    def __init__(
        self,
        source: StreamOwner,
        replication: ReplicationConnection,
        changes: ChangeDecoder,
        writer: ChangeWriter,
        target: int | None,
        *,
        snapshot: int = 0,
    ) -> None:
        self._source = source
        self._snapshot = snapshot
        """The position of the newest snapshot: before it the topics of tables do not fit together."""
        self._replication = replication
        self._changes = changes
        self._writer = writer
        self._target = target
        self._passed_position = 0
        """The position up to which the server has sent everything, from its keepalives."""
        self._highest_position = 0
        self._last_status = (0, 0.0)
        self._watched_s = time.monotonic()

    def run(self) -> None:
        """Read until stopped, or until the target position is reached."""
        with translated_errors():
            self._read()
        if not self._changes.in_transaction:
            self._writer.commit_complete()
        self._send_standby_status(self._confirmed_position(), request_reply=False, force=True)

    def _read(self) -> None:
        while not self._source.stopped():
            self._replication.consume_input()
            if not self._read_all() and self._commit_and_wait():
                return

    def _read_all(self) -> bool:
        """Read all available messages; returns whether there were any."""
        read, change = self._replication.read, self._changes.read
        size, data = read(1)
        if size == 0:
            return False
        while size > 0:
            message = bytes(data)
            if message[0] == XLOG:
                change(message)
            else:
                self._keepalive(message)
            size, data = read(1)
        if size < 0:
            raise DatabaseUnavailable("the database closed the stream of changes.")
        return True

    def _commit_and_wait(self) -> bool:
        """Commit, confirm and wait for input; returns whether the target position is reached."""
        if not self._changes.in_transaction:
            self._writer.commit_complete()
        confirmed = self._confirmed_position()
        is_before_snapshot = self._source.committed_position < self._snapshot
        if is_before_snapshot and confirmed >= self._snapshot and not self._changes.in_transaction:
            self._writer.advance(confirmed)
        if self._target is not None and confirmed >= self._target:
            return True
        self._send_standby_status(confirmed, request_reply=self._target is not None or is_before_snapshot)
        if time.monotonic() - self._watched_s > WAL_CHECK_INTERVAL_S:
            self._watched_s = time.monotonic()
            self._source.check_retained_wal()
        self._replication.wait(POLL_INTERVAL_S)
        return False

    def _keepalive(self, message: bytes) -> None:
        _, end, _, wants_reply = _KEEPALIVE.unpack(message)
        if not self._changes.in_transaction:
            self._passed_position = end
        if wants_reply:
            self._send_standby_status(self._confirmed_position(), request_reply=False, force=True)

    def _confirmed_position(self) -> int:
        """The position up to which the server need not retain WAL.

        A position that a keepalive reports counts as well once everything before it is committed: so the slot
        advances while only tables that are not captured change.
        """
        stored = self._source.committed_position
        if self._changes.end <= stored:
            stored = max(stored, self._passed_position)
        self._highest_position = max(self._highest_position, stored)
        return self._highest_position

    def _send_standby_status(self, position: int, *, request_reply: bool, force: bool = False) -> None:
        last, when_s = self._last_status
        now_s = time.monotonic()
        since_s = now_s - when_s
        is_due = since_s > (
            REPLY_INTERVAL_S
            if request_reply
            else STATUS_INTERVAL_S
            if position != last
            else WAL_CHECK_INTERVAL_S
        )
        if not (force or is_due):
            return
        self._last_status = (position, now_s)
        self._replication.send_standby_status(position, request_reply=request_reply)
