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

from headrace.capture.postgres.pgoutput import EPOCH_MS
from headrace.capture.postgres.values import SETTINGS
from headrace.capture.source import CaptureError, DatabaseUnavailable, PreflightFailed, SlotInUse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.capture.postgres.catalog import CatalogTable


def read_lsn(text: str) -> int:
    """Parse an LSN as PostgreSQL writes it.

    >>> read_lsn("1/10")
    4294967312
    """
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def write_lsn(position: int) -> str:
    """Format an LSN as PostgreSQL does.

    >>> write_lsn(4294967312)
    '1/10'
    """
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


APPLICATION: Final = "headrace capture"
CONNECT_TIMEOUT_S: Final = 10
OBJECT_IN_USE: Final = b"55006"
RETRYABLE: Final = (b"08", b"57", b"53")
"""SQLSTATE classes worth a retry: lost connections, server start or shutdown, too many connections."""

_STATUS: Final = struct.Struct(">cqqqqb")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise `DatabaseUnavailable` for lost connections."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError) as fault:
        raise DatabaseUnavailable(f"the database does not respond: {str(fault).strip()}") from fault


def connect(url: str, **more: Any) -> psycopg.Connection[Any]:
    """Connect with the settings that the converters of values expect; raises `DatabaseUnavailable`."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items() if name != "client_encoding")
    with translated_errors():
        return psycopg.connect(
            url,
            autocommit=True,
            options=options,
            client_encoding="UTF8",
            application_name=APPLICATION,
            connect_timeout=CONNECT_TIMEOUT_S,
            **more,
        )


class ReplicationConnection:
    """A connection to a walsender, for commands and then for the stream of changes."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url, replication="database", keepalives_idle=10)
        self._pgconn: Any = self._connection.pgconn
        self.read = self._pgconn.get_copy_data
        """Called with 1: size and bytes of the next message; size 0 if there is none yet, negative at the
        end."""

    def command(self, text: str) -> list[str]:
        """Run a command; returns the first row of its result."""
        with translated_errors():
            result = self._pgconn.exec_(text.encode())
        self._check(result, pq.ExecStatus.TUPLES_OK)
        return [(result.get_value(0, index) or b"").decode() for index in range(result.nfields)]

    def start(self, slot: str, publication: str, position: int) -> None:
        """Start streaming the changes of a slot."""
        names = '"' + publication.replace('"', '""') + '"'
        # Logical messages carry the traceparent of a transaction; PostgreSQL sends them from version 14 on.
        messages = ", messages 'true'" if self._pgconn.server_version >= 140_000 else ""
        with translated_errors():
            result = self._pgconn.exec_(
                f'START_REPLICATION SLOT "{slot}" LOGICAL {write_lsn(position)} '
                f"(proto_version '1', publication_names '{names}'{messages})".encode()
            )
        self._check(result, pq.ExecStatus.COPY_BOTH)

    def wait(self, timeout_s: float) -> None:
        """Wait until input is available, or until the timeout."""
        with translated_errors():
            select.select([self._pgconn.socket], [], [], timeout_s)

    def consume_input(self) -> None:
        """Read available input without blocking."""
        with translated_errors():
            self._pgconn.consume_input()

    def send_standby_status(self, position: int, *, request_reply: bool = False) -> None:
        """Confirm a position, up to which the server need not retain WAL, and perhaps request a keepalive."""
        now_us = time.time_ns() // 1000 - EPOCH_MS * 1000
        message = _STATUS.pack(b"r", position, position, position, now_us, request_reply)
        with translated_errors():
            self._pgconn.put_copy_data(message)
            while self._pgconn.flush():
                select.select([], [self._pgconn.socket], [])

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._connection.close()

    def _check(self, result: Any, wanted: pq.ExecStatus) -> None:
        if result.status == wanted:
            return
        code = result.error_field(pq.DiagnosticField.SQLSTATE) or b"08000"
        message = result.error_message.decode(errors="replace").strip().removeprefix("ERROR:  ")
        if code == OBJECT_IN_USE:
            raise SlotInUse(message)
        if code.startswith(RETRYABLE):
            raise DatabaseUnavailable(f"the database does not respond: {message}")
        raise CaptureError(f"the database rejected the replication command: {message}")


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
"""Changes of partitions are published as changes of the partitioned table, which has one topic."""
PUBLISHED: Final = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """The state of a slot in pg_replication_slots."""

    active_pid: int | None
    """The walsender process, if the slot is active."""
    is_lost: bool
    """Whether the server has removed WAL that the slot needs."""
    retained_bytes: int
    """How much WAL the server retains for the slot."""
    lag_bytes: int
    """How much WAL was written after the confirmed position."""


def find_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """The state of the slot, or None if it does not exist."""
    with translated_errors():
        row = connection.execute(SLOT, [name]).fetchone()
    if row is None:
        return None
    return SlotState(active_pid=row[0], is_lost=row[1] == "lost", retained_bytes=row[2], lag_bytes=row[3])


def drop_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the slot if it exists; raises `SlotInUse` while it is active."""
    try:
        with translated_errors():
            connection.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                [name],
            )
    except psycopg.errors.ObjectInUse as fault:
        raise SlotInUse(f"the slot {name!r} is active: {fault}") from fault


def terminate_reader(connection: psycopg.Connection[Any], pid: int) -> None:
    """Terminate a walsender process."""
    with translated_errors():
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])


def update_publication(
    connection: psycopg.Connection[Any], name: str, tables: Sequence[CatalogTable]
) -> None:
    """Create the publication of these tables, or alter the existing one."""
    wanted = {table.name for table in tables}
    with translated_errors():
        found = connection.execute(PUBLICATION, [name]).fetchone()
        published = {row[0] for row in connection.execute(PUBLISHED, [name])}
    is_whole = found is not None and found[0]
    if is_whole and wanted == published:
        return
    try:
        with translated_errors(), connection.transaction():
            for command in _commands(name, tables, is_new=found is None):
                connection.execute(command)
    except psycopg.errors.InsufficientPrivilege as fault:
        if is_whole and wanted <= published:
            return  # created by a privileged user, for these tables and others
        listing = ", ".join(
            sorted(f"{'' if table.is_partitioned else 'ONLY '}{table.name}" for table in tables)
        )
        again = "" if found is None else f"DROP PUBLICATION {name}; "
        raise PreflightFailed(
            f"this user may not publish the tables ({str(fault).strip()}). Let the owner of the tables run: "
            f"{again}CREATE PUBLICATION {name} FOR TABLE {listing} WITH (publish_via_partition_root = true);"
        ) from fault


def _commands(name: str, tables: Sequence[CatalogTable], *, is_new: bool) -> list[sql.Composed]:
    # ONLY: a child table (INHERITS) is published only if it is captured itself.
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
    """Drop the publication if it exists."""
    with translated_errors():
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
