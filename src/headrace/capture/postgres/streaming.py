"""The stream of changes: from messages of the replication protocol to records."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, Protocol

from headrace.capture.errors import CaptureError, SourceLost
from headrace.capture.postgres.outbox import Outbox
from headrace.capture.postgres.pgoutput import (
    MESSAGE,
    read_begin,
    read_commit,
    read_relation,
    read_truncated,
    read_tuple,
)
from headrace.capture.postgres.relation import Relation, Transaction, hidden_columns, key_of
from headrace.capture.postgres.replication import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import Progress
    from headrace.capture.postgres.catalog import Catalog, Table
    from headrace.capture.postgres.pgoutput import RelationMessage
    from headrace.capture.postgres.replication import ReplicationConnection
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import Sink

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = map(ord, "BCRIUDT")
ROW_CHANGES: Final = frozenset({INSERT, UPDATE, DELETE})
RELATION_AT: Final = slice(MESSAGE + 1, MESSAGE + 5)
TUPLE: Final = MESSAGE + 6
NEW: Final = ord("N")


class Changes:
    """Reads messages one after the other; the sink gets records, and the end of each transaction."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        progress: Progress,
        tables: Sequence[Table],
        sink: Sink,
    ) -> None:
        self._catalog = catalog
        self._settings = settings
        self._database = database
        self._tables = progress.tables
        self._start = progress.position
        self._oids = {table.relation.oid: table.name for table in tables}
        self._hidden = {
            table.name: len(hidden_columns(table.name, table.relation, settings)) for table in tables
        }
        self._sink = sink
        self._relations: dict[bytes, Relation | Outbox | None] = {}
        self._at = Transaction(0, 0, 0, progress.time_ms, 0)
        self.is_inside = False
        """Whether a transaction has begun and not ended."""
        self.end = progress.position
        """Where the last transaction ended."""

    def read(self, data: bytes) -> None:
        """Take one XLogData."""
        kind = data[MESSAGE]
        if kind in ROW_CHANGES:
            relation = self._relations[data[RELATION_AT]]
            if relation is None or self._at.position < relation.since:
                return
            if not relation.write_known(data, self._at):
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

    def _begin(self, data: bytes) -> None:
        begin = read_begin(data)
        now_ms = time.time_ns() // 1_000_000
        # A clock that was set back, or that is ahead of the broker's, must not put changes in another order.
        time_ms = max(self._at.time_ms, min(begin.commit_ms, now_ms))
        self._at = Transaction(begin.position, begin.commit_ms, begin.xid, time_ms, now_ms)
        self.is_inside = True

    def _commit(self, data: bytes) -> None:
        commit = read_commit(data)
        self.is_inside = False
        if commit.end > self.end:
            self.end = commit.end
            self._sink.end(commit.end)

    def _write(self, relation: Relation | Outbox, kind: int, data: bytes) -> None:
        lsn = int.from_bytes(data[1:9], "big")
        if kind == INSERT:
            relation.insert(read_tuple(data, TUPLE)[0], lsn, self._at)
        elif kind == DELETE:
            relation.delete(read_tuple(data, TUPLE)[0], lsn, self._at)
        else:
            old, at = None, MESSAGE + 5
            if data[at] != NEW:
                old, at = read_tuple(data, at + 1)
            relation.update(old, read_tuple(data, at + 1)[0], lsn, self._at)

    def _truncate(self, data: bytes) -> None:
        lsn = int.from_bytes(data[1:9], "big")
        for oid in read_truncated(data):
            relation = self._relations.get(oid)
            if relation is not None and self._at.position >= relation.since:
                relation.truncate(lsn, self._at)

    def _relation(self, message: RelationMessage) -> Relation | Outbox | None:
        name = f"{message.schema}.{message.table}"
        # One that was renamed keeps its topic.
        name = name if name in self._tables else self._oids.get(message.oid, name)
        if name not in self._tables:
            return None
        key = key_of(message, lambda: self._catalog.primary_key(message.oid))
        if name != self._settings.outbox:
            self._check_key(name, message, key)
            self._check_hidden(name, message)
        return make_relation(
            message,
            name,
            key=key,
            topic=self._tables[name].topic,
            since=max(self._tables[name].position, self._start),
            catalog=self._catalog,
            settings=self._settings,
            database=self._database,
            sink=self._sink,
        )

    def _check_key(self, name: str, message: RelationMessage, key: tuple[str, ...]) -> None:
        """Stop where the keys of the topic's records would no longer be those of the table's rows."""
        known = self._tables[name].key
        names = {column.name for column in message.columns}
        # The key of one column is its text, whatever the column is called.
        is_renamed = len(known) == len(key) == 1 and known[0] not in names
        if key == known or is_renamed:
            return
        raise CaptureError(
            f"the key of {name} (its primary key, or its replica identity) has changed from "
            f"({', '.join(known) or 'none'}) to ({', '.join(key) or 'none'}), and the records in "
            f"{self._tables[name].topic!r} have the old one. Undo that; or leave the table out once, delete "
            "its topic, and name the table again: it gets a new snapshot."
        )

    def _check_hidden(self, name: str, message: RelationMessage) -> None:
        """Stop where a column that is hidden has another name now: its values would be seen."""
        expected = self._hidden.get(name, 0)
        if len(hidden_columns(name, message, self._settings)) < expected:
            raise CaptureError(
                f"a masked or hashed column of {name} was renamed or dropped. So that no value of it becomes "
                "visible, the capture stops before this change: keep its old name in --mask or --hash, add "
                "the new one, and start the capture again."
            )


def make_relation(
    message: RelationMessage,
    name: str,
    *,
    key: tuple[str, ...],
    topic: str,
    since: int,
    catalog: Catalog,
    settings: CaptureSettings,
    database: str,
    sink: Sink,
) -> Relation | Outbox:
    """What handles the rows of a table: its events, or for the outbox the messages in it."""
    if name == settings.outbox:
        return Outbox(message, topic=topic, since=since, sink=sink)
    return Relation(
        message,
        table=name,
        key=key,
        topic=topic,
        since=since,
        catalog=catalog,
        settings=settings,
        database=database,
        sink=sink,
    )


THANK_S: Final = 1.0
"""How often the database is told what it need not keep, if that has changed."""
ASK_S: Final = 0.02
"""How often it is asked how far it is, by a capture that is to end there."""
WATCH_S: Final = 10.0
"""How often the log that it holds is looked at."""
TURN_S: Final = 0.25
XLOG: Final = ord("w")
_KEEPALIVE: Final = struct.Struct(">cqqb")


class Owner(Protocol):
    """What the loop asks of the source."""

    stopped: Callable[[], bool]

    @property
    def stored(self) -> int:
        """Up to where all is in the log."""

    def watch(self) -> None:
        """Look at how much log the database holds."""


class Follower:
    """Reads one stream of changes from its start to its end."""

    def __init__(
        self,
        source: Owner,
        replication: ReplicationConnection,
        changes: Changes,
        sink: Sink,
        target: int | None,
    ) -> None:
        self._source = source
        self._replication = replication
        self._changes = changes
        self._sink = sink
        self._target = target
        self._seen = 0
        """Up to where the server has said that it has sent us everything."""
        self._highest = 0
        self._thanked = (0, 0.0)
        self._watched_s = time.monotonic()

    def run(self) -> None:
        """Read until stopped, or until the target is reached."""
        with explained():
            self._read()
        if not self._changes.is_inside:
            self._sink.rest()
        self._thank(self._confirmed(), ask=False, at_once=True)

    def _read(self) -> None:
        while not self._source.stopped():
            self._replication.take_in()
            if not self._read_all() and self._pause():
                return

    def _read_all(self) -> bool:
        """Read all messages that are here; whether there were any."""
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
            raise SourceLost("the database ended the stream of changes.")
        return True

    def _pause(self) -> bool:
        """There is nothing to read; whether all is done."""
        if not self._changes.is_inside:
            self._sink.rest()
        confirmed = self._confirmed()
        if self._target is not None and confirmed >= self._target:
            return True
        self._thank(confirmed, ask=self._target is not None)
        if time.monotonic() - self._watched_s > WATCH_S:
            self._watched_s = time.monotonic()
            self._source.watch()
        self._replication.wait(TURN_S)
        return False

    def _keepalive(self, message: bytes) -> None:
        _, end, _, wants_reply = _KEEPALIVE.unpack(message)
        if not self._changes.is_inside:
            self._seen = end
        if wants_reply:
            self._thank(self._confirmed(), ask=False, at_once=True)

    def _confirmed(self) -> int:
        """Up to where the database need not keep its log.

        What the server has passed without anything for us counts as well, once all before it is stored:
        that moves the slot on while our tables are quiet and others are not.
        """
        stored = self._source.stored
        if self._changes.end <= stored:
            stored = max(stored, self._seen)
        self._highest = max(self._highest, stored)
        return self._highest

    def _thank(self, position: int, *, ask: bool, at_once: bool = False) -> None:
        last, when_s = self._thanked
        now_s = time.monotonic()
        since_s = now_s - when_s
        is_due = since_s > (ASK_S if ask else THANK_S if position != last else WATCH_S)
        if not (at_once or is_due):
            return
        self._thanked = (position, now_s)
        self._replication.thank(position, ask=ask)
