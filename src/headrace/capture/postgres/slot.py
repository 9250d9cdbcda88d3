"""The replication slot and the publication: why the database keeps its log, and for which tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from headrace.capture.errors import SlotTaken, UnfitDatabase
from headrace.capture.postgres.connection import explained

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOT: Final = """
SELECT active_pid, coalesce(wal_status, ''),
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0)::bigint
FROM pg_replication_slots WHERE slot_name = %s
"""
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


def publish(connection: psycopg.Connection[Any], name: str, tables: Iterable[str]) -> None:
    """See to it that the publication has these tables, and is there."""
    wanted = set(tables)
    with explained():
        found = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone()
        published = {row[0] for row in connection.execute(PUBLISHED, [name])}
    if found is not None and wanted == published:
        return
    listed = sql.SQL(", ").join(sql.Identifier(*table.split(".", 1)) for table in sorted(wanted))
    command = (
        sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)")
        if found is None
        else sql.SQL("ALTER PUBLICATION {} SET TABLE {}")
    )
    try:
        with explained():
            connection.execute(command.format(sql.Identifier(name), listed))
    except psycopg.errors.InsufficientPrivilege as fault:
        if found is not None and wanted <= published:
            return  # made by somebody who may, for more tables than we were asked for
        listing = ", ".join(sorted(wanted))
        raise UnfitDatabase(
            f"this user may not publish the tables ({str(fault).strip()}). Have the owner of the tables run: "
            f"CREATE PUBLICATION {name} FOR TABLE {listing} WITH (publish_via_partition_root = true);"
        ) from fault


def drop_publication(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the publication if it is there."""
    with explained():
        connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
