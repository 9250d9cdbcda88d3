"""Connections to PostgreSQL, ordinary ones and those that speak the replication protocol."""

from __future__ import annotations

import select
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from headrace.capture.errors import CaptureError, SlotTaken, SourceLost
from headrace.capture.postgres.lsn import write_lsn
from headrace.capture.postgres.pgoutput import EPOCH_MS
from headrace.capture.postgres.values import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

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
