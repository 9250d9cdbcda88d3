"""A table as it was at one position of the log: by COPY, in a transaction that sees an exported snapshot."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from headrace.capture.errors import CaptureError
from headrace.capture.offsets import TableProgress
from headrace.capture.postgres.relation import Relation, Transaction, key_of
from headrace.capture.postgres.replication import connect, explained
from headrace.capture.postgres.streaming import make_relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.postgres.catalog import Catalog, Table
    from headrace.capture.postgres.pgoutput import Tuple
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import Sink

REPORT_ROWS: Final = 10_000
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)

Report = "Callable[[str, int, int], None]"


class Snapshot:
    """The database at one position."""

    def __init__(self, url: str, name: str, position: int, *, time_ms: int) -> None:
        self._connection = connect(url)
        self._position = position
        # Changes that follow are not older, whatever the clocks say.
        self._time_ms = max(time_ms, time.time_ns() // 1_000_000)
        with explained():
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            self._connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))

    def write(
        self,
        table: Table,
        *,
        topic: str,
        catalog: Catalog,
        settings: CaptureSettings,
        database: str,
        sink: Sink,
        report: Callable[[str, int, int], None],
        stopped: Callable[[], bool],
    ) -> None:
        """Write all rows of a table, and that those are gone which its topic has and the table has not."""
        relation = make_relation(
            table.relation,
            table.name,
            key=key_of_table(table),
            topic=topic,
            since=self._position,
            catalog=catalog,
            settings=settings,
            database=database,
            sink=sink,
        )
        stale = sink.live_keys(topic) if isinstance(relation, Relation) else set()
        rows = 0
        for values in self._rows(table, stopped):
            key = relation.snapshot(values, self._position, self._time_ms)
            if stale and key is not None:
                stale.discard(key)
            rows += 1
            if not rows % REPORT_ROWS:
                report(table.name, rows, table.rows)
        if isinstance(relation, Relation):
            at = Transaction(self._position, self._time_ms, 0, self._time_ms, self._time_ms)
            for key in sorted(stale):
                relation.forget(key, self._position, at)
        done = TableProgress(topic=topic, position=self._position, key=key_of_table(table))
        sink.table_done(table.name, done)
        report(table.name, rows, rows)

    def _rows(self, table: Table, stopped: Callable[[], bool]) -> Any:
        columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
        # Rows of tables that inherit from this one are rows of those tables, in the stream of changes too.
        only = sql.SQL("" if table.is_partitioned else "ONLY ")
        command = sql.SQL("COPY (SELECT {} FROM {}{}) TO STDOUT").format(
            columns, only, sql.Identifier(table.relation.schema, table.relation.table)
        )
        pgconn: Any = self._connection.pgconn
        with explained():
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
                yield read_line(bytes(line))
                if stopped():
                    raise Interrupted
            pgconn.get_result()

    def close(self) -> None:
        """Let go of the snapshot."""
        self._connection.close()


class Interrupted(Exception):
    """Somebody stopped the capture in the middle of a table."""


def key_of_table(table: Table) -> tuple[str, ...]:
    """The columns that are the key of a table's records, as the catalogue has them now."""
    return key_of(table.relation, lambda: table.primary_key)


def read_line(line: bytes) -> Tuple:
    r"""The values in a line of COPY's text.

    >>> read_line(b"1\t\\N\ta\\tb\n")
    [b'1', None, b'a\tb']
    """
    values = line[:-1].split(b"\t")
    if b"\\" not in line:
        return values  # type: ignore[return-value]  # bytes are values
    return [
        None if value == b"\\N" else _ESCAPE.sub(_unescaped, value) if b"\\" in value else value
        for value in values
    ]


def _unescaped(found: re.Match[bytes]) -> bytes:
    return _ESCAPES.get(found[1], found[1])
