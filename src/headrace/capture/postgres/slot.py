"""The replication slot and the publication: why the database keeps its log, and for which tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from headrace.capture.errors import SlotTaken, UnfitDatabase
from headrace.capture.postgres.connection import explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.capture.postgres.catalog import Table

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
