"""Captures that are known on a broker: what they hold in their databases; how to stop and drop them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.capture.errors import SlotTaken, SourceLost, UnknownCapture
from headrace.capture.offsets import STOP, TOPIC, make_topic, read_progress
from headrace.capture.postgres.replication import (
    connect,
    drop_publication,
    drop_slot,
    end_reader,
    explained,
    find_slot,
    write_lsn,
)
from headrace.capture.settings import redacted
from headrace.client.cluster import Cluster
from headrace.client.identity import new_identity
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.retry import attempts
from headrace.errors import Misuse
from headrace.protocol.records import NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from headrace.capture.offsets import Progress
    from headrace.capture.postgres.replication import SlotState

PATIENCE_S: Final = 15.0
SYSTEM: Final = "SELECT system_identifier || ':' || current_database() FROM pg_control_system()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatus:
    """A capture, and its slot if the database was asked."""

    name: str
    database: str
    position: str
    """The end of the last transaction that is in the log."""
    tables: dict[str, str]
    """The topic of each table whose snapshot was taken."""
    is_running: bool | None
    """Whether somebody reads the slot; nothing where it was not asked, or is not there."""
    slot: str
    is_lost: bool | None
    wal_held_bytes: int | None
    """How much of its log the database keeps for the capture."""
    lag_bytes: int | None
    problem: str = ""
    """Why the database could not be asked."""


def find_capture(bootstrap: str, name: str) -> Progress:
    """How far a capture is."""
    known = read_progress(bootstrap).captures
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        raise UnknownCapture(f"no capture named {name!r} has run on this broker; there are: {listed}.")
    return known[name]


def list_captures(bootstrap: str) -> list[Progress]:
    """All captures that are known, by name."""
    known = read_progress(bootstrap).captures
    return [known[name] for name in sorted(known)]


def status_of(progress: Progress, url: str | None) -> CaptureStatus:
    """A capture with what its database says, if the operator gave its address."""
    slot: SlotState | None = None
    problem = ""
    try:
        with _database(progress, url) as connection:
            slot = find_slot(connection, progress.slot)
    except (SourceLost, Misuse) as fault:
        problem = str(fault)
    if slot is None and not problem:
        problem = f"the slot {progress.slot} is gone"
    return CaptureStatus(
        name=progress.name,
        database=progress.address,
        position=write_lsn(progress.position),
        tables={name: table.topic for name, table in progress.tables.items()},
        is_running=None if slot is None else slot.active_pid is not None,
        slot=progress.slot,
        is_lost=None if slot is None else slot.is_lost,
        wal_held_bytes=None if slot is None else slot.held_bytes,
        lag_bytes=None if slot is None else slot.lag_bytes,
        problem=problem,
    )


def stop_capture(bootstrap: str, progress: Progress, url: str | None) -> bool:
    """Have a capture end cleanly, wherever it runs; whether it did run."""
    with _database(progress, url) as connection:
        slot = find_slot(connection, progress.slot)
        if slot is None or slot.active_pid is None:
            return False
        _write(bootstrap, progress.name + STOP, b"{}")
        return _end(connection, progress)


def drop_capture(bootstrap: str, progress: Progress, url: str | None) -> None:
    """Stop a capture, drop its slot and publication, and forget how far it was; topics stay."""
    stop_capture(bootstrap, progress, url)
    with _database(progress, url) as connection:
        drop_slot(connection, progress.slot)
        drop_publication(connection, progress.slot)
    forget_capture(bootstrap, progress.name)


@contextmanager
def _database(progress: Progress, url: str | None) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the capture's database by the address that the operator gives, and to no other one."""
    if url is None:
        raise Misuse(
            f"the database of the capture {progress.name!r} ({progress.address}) was not asked: give its "
            "address with --url, in HEADRACE_CAPTURE, or as url under [capture] in headrace.toml. The one "
            "that the broker keeps is not connected to, because others can write it."
        )
    with connect(url) as connection:
        with explained():
            row = connection.execute(SYSTEM).fetchone()
        if row != (progress.system,):
            raise Misuse(
                f"{redacted(url)} is not the database of the capture {progress.name!r}, which is "
                f"{progress.address}: give the address of that one."
            )
        yield connection


def forget_capture(bootstrap: str, name: str) -> None:
    """Forget how far a capture was; its database is not asked."""
    _write(bootstrap, name, None)
    _write(bootstrap, name + STOP, None)


def _end(connection: psycopg.Connection[Any], progress: Progress) -> bool:
    """End the reader, again if it was quick enough to come back, until there is none."""
    for _ in attempts(PATIENCE_S):
        slot = find_slot(connection, progress.slot)
        if slot is None or slot.active_pid is None:
            return True
        end_reader(connection, slot.active_pid)
    raise SlotTaken(
        f"the slot {progress.slot} is still being read after {PATIENCE_S:g} s: end the process that runs the "
        "capture."
    )


def _write(bootstrap: str, key: str, value: bytes | None) -> None:
    import time

    record = NewRecord(key=key.encode(), value=value, timestamp=time.time_ns() // 1_000_000)
    with Cluster.of(bootstrap) as cluster:
        make_topic(cluster)
        identity = new_identity(cluster)
        batch = encode_batch(
            [record], producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=0
        )
        producer = BatchProducer(cluster)
        producer.send(TopicPartition(TOPIC, 0), batch)
        producer.flush()
