"""Connections to PostgreSQL, log sequence numbers, the replication slot and the publication."""

from __future__ import annotations

import select
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq, sql

from headrace.capture.errors import CaptureError, SlotTaken, SourceLost, UnfitDatabase
from headrace.capture.postgres.pgoutput import EPOCH_MS
from headrace.capture.postgres.values import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.capture.postgres.catalog import Table


def read_lsn(text: str) -> int:
    """The number that PostgreSQL writes in this way.

    >>> read_lsn("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def write_lsn(position: int) -> str:
    """The number as PostgreSQL writes it.

    >>> write_lsn(4294967312)
    '1/10'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


APPLICATION: Final = "headrace capture"
CONNECT_S: Final = 10
IN_USE: Final = b"55006"
PASSING: Final = (b"08", b"57", b"53")
"""Classes of errors that pass: lost connections, a server that starts or stops, too many connections."""

_STATUS: Final = struct.Struct(">cqqqqb")


@contextmanager
def explained() -> Iterator[None]:
    """Turn the loss of a database into an error of ours."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as fault:
        raise SourceLost(f"the database does not answer: {str(fault).strip()}") from fault


def connect(url: str, **more: Any) -> psycopg.Connection[Any]:
    """A connection in which values look as capture expects them, or `SourceLost`."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items() if name != "client_encoding")
    with explained():
        return psycopg.connect(
            url,
            autocommit=True,
            options=options,
            client_encoding="UTF8",
            application_name=APPLICATION,
            connect_timeout=CONNECT_S,
            **more,
        )


class ReplicationConnection:
    """A connection to a walsender: commands, then changes that come and thanks that go."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url, replication="database", keepalives_idle=10)
        self._pgconn: Any = self._connection.pgconn
        self.read = self._pgconn.get_copy_data
        """With 1: the size of the next message, and the message; 0 if there is none now, less at the end."""

    def command(self, text: str) -> list[str]:
        """The first row of a command's answer."""
        with explained():
            result = self._pgconn.exec_(text.encode())
        self._check(result, pq.ExecStatus.TUPLES_OK)
        return [(result.get_value(0, index) or b"").decode() for index in range(result.nfields)]

    def start(self, slot: str, publication: str, position: int) -> None:
        """Begin to read a slot's changes."""
        names = '"' + publication.replace('"', '""') + '"'
        with explained():
            result = self._pgconn.exec_(
                f'START_REPLICATION SLOT "{slot}" LOGICAL {write_lsn(position)} '
                f"(proto_version '1', publication_names '{names}')".encode()
            )
        self._check(result, pq.ExecStatus.COPY_BOTH)

    def wait(self, timeout_s: float) -> None:
        """Return when there may be something to take in, or after a time."""
        with explained():
            select.select([self._pgconn.socket], [], [], timeout_s)

    def take_in(self) -> None:
        """Take what has come, without waiting."""
        with explained():
            self._pgconn.consume_input()

    def thank(self, position: int, *, ask: bool = False) -> None:
        """Tell the database what it need not keep; with `ask` it is to say how far it is."""
        now_us = time.time_ns() // 1000 - EPOCH_MS * 1000
        message = _STATUS.pack(b"r", position, position, position, now_us, ask)
        with explained():
            self._pgconn.put_copy_data(message)
            while self._pgconn.flush():
                select.select([], [self._pgconn.socket], [])

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        self._connection.close()

    def _check(self, result: Any, wanted: pq.ExecStatus) -> None:
        if result.status == wanted:
            return
        code = result.error_field(pq.DiagnosticField.SQLSTATE) or b"08000"
        message = result.error_message.decode(errors="replace").strip().removeprefix("ERROR:  ")
        if code == IN_USE:
            raise SlotTaken(message)
        if code.startswith(PASSING):
            raise SourceLost(f"the database does not answer: {message}")
        raise CaptureError(f"the database refused to replicate: {message}")


SLOT: Final = """
SELECT active_pid, coalesce(wal_status, ''),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
PUBLICATION: Final = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot FROM pg_publication
WHERE pubname = %s
"""
OPTIONS: Final = sql.SQL("publish = 'insert, update, delete, truncate', publish_via_partition_root = true")
"""Changes to partitions are changes to the table that they belong to: it has one topic."""
PUBLISHED: Final = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A slot as the database sees it."""

    active_pid: int | None
    """The server's process that sends its changes, if somebody reads it."""
    is_lost: bool
    """Whether the log that it stands for was removed."""
    held_bytes: int
    """How much log the database keeps for it."""
    lag_bytes: int
    """How much log was written since what was last confirmed."""


def find_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """The slot, if there is one."""
    with explained():
        row = connection.execute(SLOT, [name]).fetchone()
    if row is None:
        return None
    return SlotState(active_pid=row[0], is_lost=row[1] == "lost", held_bytes=row[2], lag_bytes=row[3])


def drop_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the slot if it is there; `SlotTaken` while somebody reads it."""
    try:
        with explained():
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                [name],
            )
    except psycopg.errors.ObjectInUse as fault:
        raise SlotTaken(f"the slot {name!r} is being read: {fault}") from fault


def end_reader(connection: psycopg.Connection[Any], pid: int) -> None:
    """End the server's process that sends a slot's changes."""
    with explained():
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def publish(connection: psycopg.Connection[Any], name: str, tables: Sequence[Table]) -> None:
    """Create the publication of these tables, or change the one that exists into it."""
    wanted = {table.name for table in tables}
    with explained():
        found = connection.execute(PUBLICATION, [name]).fetchone()
        published = {row[0] for row in connection.execute(PUBLISHED, [name])}
    is_whole = found is not None and found[0]
    if is_whole and wanted == published:
        return
    try:
        with explained(), connection.transaction():
            for command in _commands(name, tables, is_new=found is None):
                connection.execute(command)
    except psycopg.errors.InsufficientPrivilege as fault:
        if is_whole and wanted <= published:
            return  # created by a user with the privilege, for more tables than these
        listing = ", ".join(
            sorted(f"{'' if table.is_partitioned else 'ONLY '}{table.name}" for table in tables)
        )
        again = "" if found is None else f"DROP PUBLICATION {name}; "
        raise UnfitDatabase(
            f"this user may not publish the tables ({str(fault).strip()}). Have the owner of the tables run: "
            f"{again}CREATE PUBLICATION {name} FOR TABLE {listing} WITH (publish_via_partition_root = true);"
        ) from fault


def _commands(name: str, tables: Sequence[Table], *, is_new: bool) -> list[sql.Composed]:
    # ONLY: a table that inherits from one of these is published if it is named itself.
    listed = sql.SQL(", ").join(
        sql.SQL("{}{}").format(
            sql.SQL("" if table.is_partitioned else "ONLY "),
            sql.Identifier(table.relation.schema, table.relation.table),
        )
        for table in sorted(tables, key=lambda table: table.name)
    )
    publication = sql.Identifier(name)
    if is_new:
        return [sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})").format(publication, listed, OPTIONS)]
    return [
        sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(publication, listed),
        sql.SQL("ALTER PUBLICATION {} SET ({})").format(publication, OPTIONS),
    ]


def drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the publication if it is there."""
    with explained():
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
