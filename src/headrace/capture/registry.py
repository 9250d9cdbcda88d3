"""The captures of a broker: their status and retained WAL, and how to stop and drop them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.offsets import STOP, TOPIC, create_offsets_topic, read_offsets
from headrace.capture.postgres.replication import (
    connect,
    drop_publication,
    drop_slot,
    find_slot,
    terminate_reader,
    translated_errors,
    write_lsn,
)
from headrace.capture.settings import redact_url
from headrace.capture.source import DatabaseUnavailable, SlotInUse, UnknownCapture
from headrace.client.cluster import Cluster
from headrace.client.errors import attempts
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import new_identity
from headrace.errors import Misuse
from headrace.protocol.records import NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from headrace.capture.offsets import CaptureOffset
    from headrace.capture.postgres.replication import SlotState

STOP_TIMEOUT_S: Final = 15.0
SYSTEM_IDENTIFIER: Final = "SELECT system_identifier || ':' || current_database() FROM pg_control_system()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """The status of a capture, with that of its slot if the database could be queried."""

    name: str
    database: str
    position: str
    """The end LSN of the last committed transaction."""
    tables: dict[str, str]
    """The topic of each table with a completed snapshot."""
    is_running: bool | None
    """Whether the slot is active; None if it is unknown or does not exist."""
    slot: str
    is_lost: bool | None
    retained_wal_bytes: int | None
    """How much WAL the slot retains."""
    lag_bytes: int | None
    problem: str = ""
    """Why the database could not be queried."""


def find_capture(bootstrap: str, name: str) -> CaptureOffset:
    """The offset of a capture; `UnknownCapture` if there is none of that name."""
    known = read_offsets(bootstrap).captures
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise UnknownCapture(f"no capture named {name!r} has run on this broker. Known captures: {listed}.")
    return known[name]


def list_captures(bootstrap: str) -> list[CaptureOffset]:
    """The offsets of all captures, sorted by name."""
    known = read_offsets(bootstrap).captures
    return [known[name] for name in sorted(known)]


def capture_status(offset: CaptureOffset, url: str | None) -> CaptureStatus:
    """The status of a capture; `url` is the address of its database."""
    slot: SlotState | None = None
    problem = ""
    try:
        with _database(offset, url) as connection:
            slot = find_slot(connection, offset.slot)
    except (DatabaseUnavailable, Misuse) as fault:
        problem = str(fault)
    if slot is None and not problem:
        problem = f"the slot {offset.slot} does not exist"
    return CaptureStatus(
        name=offset.name,
        database=offset.address,
        position=write_lsn(offset.position),
        tables={name: table.topic for name, table in offset.tables.items()},
        is_running=None if slot is None else slot.active_pid is not None,
        slot=offset.slot,
        is_lost=None if slot is None else slot.is_lost,
        retained_wal_bytes=None if slot is None else slot.retained_bytes,
        lag_bytes=None if slot is None else slot.lag_bytes,
        problem=problem,
    )


def stop_capture(bootstrap: str, offset: CaptureOffset, url: str | None) -> bool:
    """Stop a capture cleanly, wherever it runs; returns whether it was running."""
    with _database(offset, url) as connection:
        slot = find_slot(connection, offset.slot)
        if slot is None or slot.active_pid is None:
            return False
        _write(bootstrap, offset.name + STOP, b"{}")
        return _terminate_readers(connection, offset)


def drop_capture(bootstrap: str, offset: CaptureOffset, url: str | None) -> None:
    """Stop a capture, drop its slot and publication, and delete its offset; its topics are kept."""
    stop_capture(bootstrap, offset, url)
    with _database(offset, url) as connection:
        drop_slot(connection, offset.slot)
        drop_publication(connection, offset.slot)
    forget_capture(bootstrap, offset.name)


@contextmanager
def _database(offset: CaptureOffset, url: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the capture's database at the operator's address, never at the stored one."""
    if url is None:
        raise Misuse(
            f"the database of the capture {offset.name!r} ({offset.address}) was not queried: set its "
            "address with --url, in HEADRACE_CAPTURE, or as url under [capture] in headrace.toml. The "
            "address in the topic of offsets is not used, because others may be able to write it."
        )
    with connect(url) as connection:
        with translated_errors():
            row = connection.execute(SYSTEM_IDENTIFIER).fetchone()
        if row != (offset.system,):
            raise Misuse(
                f"{redact_url(url)} is not the database of the capture {offset.name!r}, which is "
                f"{offset.address}: use that address."
            )
        yield connection


def forget_capture(bootstrap: str, name: str) -> None:
    """Delete the offset of a capture without connecting to its database."""
    _write(bootstrap, name, None)
    _write(bootstrap, name + STOP, None)


def _terminate_readers(connection: psycopg.Connection[Any], offset: CaptureOffset) -> bool:
    """Terminate the walsender until the slot is inactive: the capture may reconnect in between."""
    for _ in attempts(STOP_TIMEOUT_S):
        slot = find_slot(connection, offset.slot)
        if slot is None or slot.active_pid is None:
            return True
        terminate_reader(connection, slot.active_pid)
    raise SlotInUse(
        f"the slot {offset.slot} is still active after {STOP_TIMEOUT_S:g} s: stop the process that runs the "
        "capture."
    )


def _write(bootstrap: str, key: str, value: bytes | None) -> None:
    import time

    record = NewRecord(key=key.encode(), value=value, timestamp=time.time_ns() // 1_000_000)
    with Cluster.of(bootstrap) as cluster:
        create_offsets_topic(cluster)
        identity = new_identity(cluster)
        batch = encode_batch(
            [record], producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0
        )
        producer = BatchProducer(cluster)
        producer.send(TopicPartition(TOPIC, 0), batch)
        producer.flush()
