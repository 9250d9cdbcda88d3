"""From messages of the database's log to records: what each message means for what is captured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.capture.errors import CaptureError
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.capture.postgres.catalog import Catalog, Table
    from headrace.capture.postgres.pgoutput import RelationMessage
    from headrace.capture.progress import Progress
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
