"""Snapshots of tables at one position: by COPY, in a transaction that uses an exported snapshot."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from headrace.capture.errors import CaptureError
from headrace.capture.offsets import CompletedSnapshot
from headrace.capture.postgres.relation import Relation, SourceTransaction, key_columns
from headrace.capture.postgres.replication import connect, translated_errors
from headrace.capture.postgres.streaming import make_relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.postgres.catalog import Catalog, CatalogTable
    from headrace.capture.postgres.pgoutput import TupleData
    from headrace.capture.settings import CaptureSettings
    from headrace.capture.source import ChangeWriter

REPORT_ROWS: Final = 10_000
_ESCAPES: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE: Final = re.compile(rb"\\(.)", re.DOTALL)

Report = "Callable[[str, int, int], None]"


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
