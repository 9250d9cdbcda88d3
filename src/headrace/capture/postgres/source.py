"""PostgreSQL as a capture reads it: a slot that keeps the log, snapshots, and the stream of changes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.capture.errors import CaptureError, SlotGone, SlotTaken, TooFarBehind
from headrace.capture.offsets import Progress
from headrace.capture.postgres.catalog import Catalog, check_hidden, check_server, chosen_tables
from headrace.capture.postgres.replication import (
    ReplicationConnection,
    connect,
    drop_slot,
    explained,
    find_slot,
    publish,
    read_lsn,
    write_lsn,
)
from headrace.capture.postgres.snapshot import Interrupted, Snapshot, key_of_table
from headrace.capture.postgres.streaming import Changes, Follower
from headrace.client.retry import attempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.postgres.catalog import Table
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import Sink

TAKEN_S: Final = 10.0
"""How long a slot may still be read by a process that has just been killed."""


class PostgresSource:
    """One database. Not for use by several threads."""

    def __init__(
        self,
        settings: CaptureSettings,
        *,
        tell: Callable[[str], None],
        report: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._report = report
        self.stopped = stopped
        self._connection = connect(settings.url)
        self._catalog = Catalog(self._connection)
        self._database = self._connection.info.dbname
        self._replication: ReplicationConnection | None = None
        self._exported: tuple[str, int] | None = None
        self._tables: list[Table] = []
        self._stored = 0
        self._warned_bytes = 0

    def check(self) -> None:
        """Refuse a database that is not fit, and a slot that somebody else reads; watch the log it holds."""
        self.watch()
        slot = find_slot(self._connection, self._settings.slot)
        with explained():
            check_server(self._connection, has_slot=slot is not None)
            self._tables = chosen_tables(self._catalog, self._settings)
        for _ in attempts(TAKEN_S):
            if slot is None or slot.active_pid is None:
                return
            slot = find_slot(self._connection, self._settings.slot)
        assert slot is not None
        raise SlotTaken(
            f"the slot {self._settings.slot!r} is being read by another process (the server's process "
            f"{slot.active_pid}): a capture named {self._settings.name!r} runs already. Stop that one "
            f"(`headrace capture stop {self._settings.name}`), or give this one another --name."
        )

    def prepare(self, known: Progress | None) -> Progress:
        """What is known, if it can be gone on with; or a progress without a position."""
        settings = self._settings
        self._replication = ReplicationConnection(settings.url)
        system = ":".join([self._replication.command("IDENTIFY_SYSTEM")[0], self._database])
        if known is not None and known.system != system:
            raise CaptureError(
                f"the name {settings.name!r} belongs to a capture of another database ({known.address}). "
                f"Give this one another --name, or forget that one: `headrace capture drop {settings.name}`."
            )
        captured = (
            [] if known is None else [table.name for table in self._tables if table.name in known.tables]
        )
        check_hidden([table for table in self._tables if table.name not in captured], captured, settings)
        if known is None:
            self._check_no_slot()
            known = Progress(name=settings.name, address=settings.address, system=system, position=0)
        elif known.position:
            self._check_slot(known)
        publish(self._connection, settings.slot, self._tables)
        # One that is left out from now on will need a new snapshot when it comes back.
        return replace(known, tables={name: known.tables[name] for name in captured})

    def begin(self, progress: Progress) -> Progress:
        """Where to begin: from now on the database keeps its log for us."""
        drop_slot(self._connection, progress.slot)  # of a start that ended before it was noted
        self._exported = self._create_slot(progress.slot, "")
        return replace(progress, position=self._exported[1])

    def open_topics(self, progress: Progress, sink: Sink) -> None:
        """Make the topics of the tables that no snapshot was taken of; what the outbox names comes later."""
        for table in self._missing(progress):
            if table.name != self._settings.outbox:
                sink.open_topic(self._topic(table), compacted=bool(key_of_table(table)))

    def snapshot(self, progress: Progress, sink: Sink) -> None:
        """Write the tables that no snapshot was taken of; each is one transaction of the log.

        They are read as of the slot's beginning, or if that was before this process began, as of a position
        of their own: changes to a table that committed before it are left out.
        """
        missing = self._missing(progress)
        if not missing:
            return
        name, position = self._exported or self._create_slot(
            f"{self._settings.slot[:40]}_snapshot_{os.getpid()}", "TEMPORARY "
        )
        snapshot = Snapshot(self._settings.url, name, position, time_ms=progress.time_ms)
        try:
            for table in missing:
                snapshot.write(
                    table,
                    topic=self._topic(table),
                    catalog=self._catalog,
                    settings=self._settings,
                    database=self._database,
                    sink=sink,
                    report=self._report,
                    stopped=self.stopped,
                )
        except Interrupted:
            return
        finally:
            snapshot.close()
        self._reconnect()  # which ends a temporary slot

    def follow(self, progress: Progress, sink: Sink) -> None:
        """Write all changes after the progress, until stopped; with `once`, until those of now are there."""
        replication = self._replication
        assert replication is not None
        changes = Changes(
            catalog=self._catalog,
            settings=self._settings,
            database=self._database,
            progress=progress,
            tables=self._tables,
            sink=sink,
        )
        self._stored = progress.position
        target = self._now() if self._settings.once else None
        replication.start(self._settings.slot, self._settings.slot, progress.position)
        self._tell(f"follows {self._settings.address} from {write_lsn(progress.position)}")
        Follower(self, replication, changes, sink, target).run()

    def on_stored(self, position: int) -> None:
        """All up to here is in the log for good: the database need not keep it."""
        self._stored = max(self._stored, position)

    def watch(self) -> None:
        """Look at how much log the database holds for us: say when it is much, let go when too much."""
        slot = find_slot(self._connection, self._settings.slot)
        if slot is None:
            return
        held, stop, warn = slot.held_bytes, self._settings.stop_bytes, self._settings.warn_bytes
        if stop and held > stop:
            self._let_go()
            raise TooFarBehind(
                f"the database held {held >> 20} MiB of its log for the capture {self._settings.name!r}, "
                f"more than the {stop >> 20} MiB that are allowed (--stop-mb). The slot was dropped, so that "
                "the disk does not fill. Find out why the capture was behind, then forget it (`headrace "
                f"capture drop {self._settings.name}`) and start it again: it begins with a new snapshot."
            )
        if held > max(warn, 2 * self._warned_bytes):
            self._warned_bytes = held
            self._tell(
                f"the database holds {held >> 20} MiB of its log for this capture, which is "
                f"{slot.lag_bytes >> 20} MiB behind"
            )

    def close(self) -> None:
        """Hang up."""
        if self._replication is not None:
            self._replication.close()
        self._connection.close()

    @property
    def stored(self) -> int:
        """Up to where all is in the log."""
        return self._stored

    def _missing(self, progress: Progress) -> list[Table]:
        return [table for table in self._tables if table.name not in progress.tables]

    def _topic(self, table: Table) -> str:
        return self._settings.topic(table.relation.schema, table.relation.table)

    def _check_no_slot(self) -> None:
        if find_slot(self._connection, self._settings.slot) is not None:
            raise CaptureError(
                f"the database has a slot {self._settings.slot!r}, and this broker knows nothing of it: a "
                f"capture named {self._settings.name!r} runs with another broker, or this one lost its data. "
                "Give this capture another --name; or, if nobody needs the slot, drop it: "
                f"SELECT pg_drop_replication_slot('{self._settings.slot}');"
            )

    def _check_slot(self, known: Progress) -> None:
        slot = find_slot(self._connection, self._settings.slot)
        if slot is not None and not slot.is_lost:
            return
        what = "was dropped" if slot is None else "fell too far behind, and the server removed its log"
        raise SlotGone(
            f"the replication slot {known.slot!r} {what}: what was committed after "
            f"{write_lsn(known.position)} cannot be read any more. Forget the capture (`headrace capture "
            f"drop {known.name}`) and start it again: it takes a new snapshot, and corrects what its topics "
            "hold."
        )

    def _create_slot(self, name: str, temporary: str) -> tuple[str, int]:
        """The name of the snapshot and the position of a new slot."""
        assert self._replication is not None
        _, position, snapshot, _ = self._replication.command(
            f'CREATE_REPLICATION_SLOT "{name}" {temporary}LOGICAL pgoutput EXPORT_SNAPSHOT'
        )
        return snapshot, read_lsn(position)

    def _reconnect(self) -> None:
        assert self._replication is not None
        self._replication.close()
        self._replication = ReplicationConnection(self._settings.url)
        self._exported = None

    def _let_go(self) -> None:
        if self._replication is not None:
            self._replication.close()
        for _ in attempts(TAKEN_S):
            try:
                drop_slot(self._connection, self._settings.slot)
            except SlotTaken:
                continue
            return

    def _now(self) -> int:
        with explained():
            row = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return read_lsn(row[0])
