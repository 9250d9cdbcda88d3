"""PostgreSQL as the source of a capture: replication slot, snapshots by COPY, and the stream of changes."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from headrace.capture.offsets import CaptureOffset, CompletedSnapshot
from headrace.capture.postgres.catalog import (
    Catalog,
    preflight_masked_columns,
    preflight_server,
    preflight_tables,
)
from headrace.capture.postgres.relation import Relation, SourceTransaction, key_columns
from headrace.capture.postgres.replication import (
    ReplicationConnection,
    connect,
    drop_slot,
    find_slot,
    read_lsn,
    translated_errors,
    update_publication,
    write_lsn,
)
from headrace.capture.postgres.streaming import ChangeDecoder, ReplicationStream, make_relation
from headrace.capture.source import CaptureError, SlotInUse, SlotLost, WalLimitExceeded
from headrace.client.errors import attempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.metrics import CaptureMetrics
    from headrace.capture.postgres.catalog import CatalogTable
    from headrace.capture.postgres.pgoutput import TupleData
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import ChangeWriter
    from headrace.tracing import Tracer


REPORT_ROWS: Final = 10_000
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)

Report = "Callable[[str, int, int], None]"
SLOT_RELEASE_TIMEOUT_S: Final = 10.0
"""How long a slot may stay active after its reader was killed."""


class DatabaseSnapshot:
    """A consistent view of the database at one position."""

    def __init__(self, url: str, name: str, position: int, *, time_ms: int) -> None:
        self._connection = connect(url)
        self._position = position
        # Later changes must not have earlier timestamps, even if a clock is set back.
        self._time_ms = max(time_ms, time.time_ns() // 1_000_000)
        with translated_errors():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))

    def write(
        self,
        table: CatalogTable,
        *,
        topic: str,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        writer: ChangeWriter,
        on_progress: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Write all rows of a table, and tombstones for keys that only its topic has."""
        relation = make_relation(
            table.relation,
            table.name,
            key=table_key_columns(table),
            topic=topic,
            start_position=self._position,
            catalog=catalog,
            settings=settings,
            database=database,
            writer=writer,
        )
        stale = writer.live_keys(topic) if isinstance(relation, Relation) else set()
        rows = 0
        for values in self._rows(table, stopped):
            key = relation.snapshot(values, self._position, self._time_ms)
            if stale and key is not None:
                stale.discard(key)
            rows += 1
            if not rows % REPORT_ROWS:
                on_progress(table.name, rows, table.rows)
        if isinstance(relation, Relation):
            at = SourceTransaction(self._position, self._time_ms, 0, self._time_ms, self._time_ms)
            for key in sorted(stale):
                relation.delete_key(key, self._position, at)
        done = CompletedSnapshot(topic=topic, position=self._position, key=table_key_columns(table))
        writer.finish_snapshot(table.name, done)
        on_progress(table.name, rows, rows)

    def _rows(self, table: CatalogTable, stopped: Callable[[], bool]) -> Any:
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
        # As in the stream of changes, rows of child tables (INHERITS) are not rows of this table.
        only = sql.SQL("" if table.is_partitioned else "ONLY ")
        command = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
            columns, only, sql.Identifier(table.relation.schema, table.relation.table)
        )
        pgconn: Any = self._connection.pgconn
        with translated_errors():
            result = pgconn.exec_(command.as_bytes(self._connection))
            if result.status != 3:  # COPY_OUT
                raise CaptureError(
                    f"{table.name} could not be read: {result.error_message.decode(errors='replace').strip()}"
                )
            read = pgconn.get_copy_data
            while True:
                size, line = read(0)
                if size < 0:
                    break
                yield read_copy_line(bytes(line))
                if stopped():
                    raise SnapshotInterrupted
            pgconn.get_result()

    def close(self) -> None:
        """Release the snapshot."""
        self._connection.close()


class SnapshotInterrupted(Exception):
    """The capture was stopped during the snapshot of a table."""


def table_key_columns(table: CatalogTable) -> tuple[str, ...]:
    """The key columns of a table in the current catalog."""
    return key_columns(table.relation, lambda: table.primary_key)


def read_copy_line(line: bytes) -> TupleData:
    r"""The values in a line of COPY's text format.

    >>> read_copy_line(b"1\t\\N\ta\\tb\n")
    [b'1', None, b'a\tb']
    """
    values = line[:-1].split(b"\t")
    if b"\\" not in line:
        return values  # type: ignore[return-value]  # bytes are values
    return [
        None if value == b"\\N" else _ESCAPE.sub(_unescape, value) if b"\\" in value else value
        for value in values
    ]


def _unescape(found: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(found[1], found[1])


class PostgresSource:
    """One PostgreSQL database. Not thread-safe."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        on_message: Callable[[str], None],
        on_progress: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
        metrics: CaptureMetrics,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._settings = settings
        self._metrics = metrics
        self._on_message = on_message
        self._on_progress = on_progress
        self.stopped = stopped
        self._connection = connect(settings.url)
        self._catalog = Catalog(self._connection)
        self._database = self._connection.info.dbname
        self._replication: ReplicationConnection | None = None
        self._exported_snapshot: tuple[str, int] | None = None
        self._tables: list[CatalogTable] = []
        self._committed_position = 0
        self._warned_bytes = 0

    def preflight(self) -> None:
        """Check the server, the tables, the retained WAL, and that no other process reads the slot."""
        self.check_retained_wal()
        slot = find_slot(self._connection, self._settings.slot)
        with translated_errors():
            preflight_server(self._connection, has_slot=slot is not None)
            self._tables = preflight_tables(self._catalog, self._settings)
        for _ in attempts(SLOT_RELEASE_TIMEOUT_S):
            if slot is None or slot.active_pid is None:
                return
            slot = find_slot(self._connection, self._settings.slot)
        assert slot is not None
        raise SlotInUse(
            f"the slot {self._settings.slot!r} is active (walsender process {slot.active_pid}): a capture "
            f"named {self._settings.name!r} is already running. Stop it (`headrace capture stop "
            f"{self._settings.name}`), or choose another --name."
        )

    def prepare(self, known: CaptureOffset | None) -> CaptureOffset:
        """The offset to continue from; one without a position for a new capture."""
        settings = self._settings
        self._replication = ReplicationConnection(settings.url)
        system = ":".join([self._replication.command("IDENTIFY_SYSTEM")[0], self._database])
        if known is not None and known.system != system:
            raise CaptureError(
                f"the name {settings.name!r} belongs to a capture of another database ({known.address}). "
                f"Choose another --name, or drop that capture: `headrace capture drop {settings.name}`."
            )
        captured = (
            [] if known is None else [table.name for table in self._tables if table.name in known.tables]
        )
        preflight_masked_columns(
            [table for table in self._tables if table.name not in captured], captured, settings
        )
        if known is None:
            self._check_no_slot()
            known = CaptureOffset(name=settings.name, address=settings.address, system=system, position=0)
        elif known.position:
            self._check_slot(known)
        update_publication(self._connection, settings.slot, self._tables)
        # A table that is not captured any more needs a new snapshot when it is added again.
        tables = {name: known.tables[name] for name in captured}
        topics = {table.topic for table in tables.values()}
        ends = {topic: ends for topic, ends in known.ends.items() if topic in topics}
        return replace(known, tables=tables, ends=ends)

    def create_slot(self, offset: CaptureOffset) -> CaptureOffset:
        """Create the slot: from its position on, the server retains its WAL."""
        drop_slot(
            self._connection, offset.slot
        )  # left by a start that crashed before the offset was committed
        self._exported_snapshot = self._create_slot(offset.slot, "")
        return replace(offset, position=self._exported_snapshot[1])

    def create_topics(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Create the topics of tables without a snapshot, except those that the outbox names."""
        for table in self._tables_without_snapshot(offset):
            if table.name != self._settings.outbox:
                writer.open_topic(self._topic(table), compacted=bool(table_key_columns(table)))

    def snapshot(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Write the snapshots that are missing; each table is one Kafka transaction.

        Tables are read at the position of the slot if this process created it. Otherwise a temporary slot
        exports a snapshot with its own position, and changes that committed before it are skipped.
        """
        missing = self._tables_without_snapshot(offset)
        if not missing:
            return
        name, position = self._exported_snapshot or self._create_slot(
            f"{self._settings.slot[:40]}_snapshot_{os.getpid()}", "TEMPORARY "
        )
        snapshot = DatabaseSnapshot(self._settings.url, name, position, time_ms=offset.time_ms)
        try:
            for table in missing:
                snapshot.write(
                    table,
                    topic=self._topic(table),
                    catalog=self._catalog,
                    settings=self._settings,
                    database=self._database,
                    writer=writer,
                    on_progress=self._on_progress,
                    stopped=self.stopped,
                )
        except SnapshotInterrupted:
            return
        finally:
            snapshot.close()
        self._reconnect()  # drops a temporary slot

    def stream_changes(self, offset: CaptureOffset, writer: ChangeWriter) -> None:
        """Write all changes after the offset until stopped; with `once`, those that are committed now."""
        replication = self._replication
        assert replication is not None
        changes = ChangeDecoder(
            catalog=self._catalog,
            settings=self._settings,
            database=self._database,
            offset=offset,
            tables=self._tables,
            writer=writer,
            tracer=self._tracer,
        )
        self._committed_position = offset.position
        target = self._current_position() if self._settings.once else None
        replication.start(self._settings.slot, self._settings.slot, offset.position)
        self._on_message(f"streaming changes of {self._settings.address} from {write_lsn(offset.position)}")
        snapshot = max((table.position for table in offset.tables.values()), default=0)
        ReplicationStream(self, replication, changes, writer, target, snapshot=snapshot).run()

    def on_committed(self, position: int) -> None:
        """Everything up to this position is committed."""
        self._committed_position = max(self._committed_position, position)

    def check_retained_wal(self) -> None:
        """Warn when the slot retains much WAL; drop the slot when it exceeds the limit."""
        slot = find_slot(self._connection, self._settings.slot)
        if slot is None:
            return
        self._metrics.lag_bytes, self._metrics.retained_wal_bytes = slot.lag_bytes, slot.retained_bytes
        held, stop, warn = slot.retained_bytes, self._settings.stop_bytes, self._settings.warn_bytes
        if stop and held > stop:
            self._drop_slot_in_use()
            raise WalLimitExceeded(
                f"the slot of the capture {self._settings.name!r} retained {held >> 20} MiB of WAL, more "
                f"than the limit of {stop >> 20} MiB (--stop-mb), and was dropped, so that the disk does "
                "not fill. Find out why the capture was behind, drop it (`headrace capture drop "
                f"{self._settings.name}`), and start it again: it takes a new snapshot."
            )
        if held > max(warn, 2 * self._warned_bytes):
            self._warned_bytes = held
            self._on_message(
                f"the slot retains {held >> 20} MiB of WAL; the capture is {slot.lag_bytes >> 20} MiB behind"
            )

    def close(self) -> None:
        """Close the connections."""
        if self._replication is not None:
            self._replication.close()
        self._connection.close()

    @property
    def committed_position(self) -> int:
        """The position up to which everything is committed."""
        return self._committed_position

    def _tables_without_snapshot(self, offset: CaptureOffset) -> list[CatalogTable]:
        return [table for table in self._tables if table.name not in offset.tables]

    def _topic(self, table: CatalogTable) -> str:
        return self._settings.topic(table.relation.schema, table.relation.table)

    def _check_no_slot(self) -> None:
        if find_slot(self._connection, self._settings.slot) is not None:
            raise CaptureError(
                f"the database has a slot {self._settings.slot!r} that is unknown to this broker: a capture "
                f"named {self._settings.name!r} uses another broker, or this broker has lost its data. "
                "Choose another --name; or, if the slot is not needed, drop it: "
                f"SELECT pg_drop_replication_slot('{self._settings.slot}');"
            )

    def _check_slot(self, known: CaptureOffset) -> None:
        slot = find_slot(self._connection, self._settings.slot)
        if slot is not None and not slot.is_lost:
            return
        what = "was dropped" if slot is None else "is lost, because the server removed its WAL"
        raise SlotLost(
            f"the replication slot {known.slot!r} {what}: changes after {write_lsn(known.position)} cannot "
            f"be read any more. Drop the capture (`headrace capture drop {known.name}`) and start it again: "
            "it takes a new snapshot, and corrects its topics."
        )

    def _create_slot(self, name: str, temporary: str) -> tuple[str, int]:
        """Create a slot; returns the name of its exported snapshot and its position."""
        assert self._replication is not None
        _, position, snapshot, _ = self._replication.command(
            f'CREATE_REPLICATION_SLOT "{name}" {temporary}LOGICAL pgoutput EXPORT_SNAPSHOT'
        )
        return snapshot, read_lsn(position)

    def _reconnect(self) -> None:
        assert self._replication is not None
        self._replication.close()
        self._replication = ReplicationConnection(self._settings.url)
        self._exported_snapshot = None

    def _drop_slot_in_use(self) -> None:
        if self._replication is not None:
            self._replication.close()
        for _ in attempts(SLOT_RELEASE_TIMEOUT_S):
            try:
                drop_slot(self._connection, self._settings.slot)
            except SlotInUse:
                continue
            return

    def _current_position(self) -> int:
        with translated_errors():
            row = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return read_lsn(row[0])
