"""Change events as Debezium writes them, without a schema around them.

    {"before": …, "after": …, "source": {…}, "op": "c", "ts_ms": …}

`op` is r for a row of a snapshot, c, u, d for one that was inserted, updated, deleted, and t for one that a
TRUNCATE took. A delete is followed by a record without a value, so that compaction forgets the key.
"""

from __future__ import annotations

import json
from typing import Final

NOTHING: Final = b"null"
_EVENT: Final = '{"before":%b,"after":%b,"source":'


class Envelopes:
    """The events of one table; rows are given as JSON."""

    __slots__ = ("_change", "_snapshot")

    def __init__(self, *, name: str, database: str, schema: str, table: str) -> None:
        def source(snapshot: str, times: str) -> bytes:
            fixed = {
                "version": "headrace",
                "connector": "postgresql",
                "name": name,
                "snapshot": snapshot,
                "db": database,
                "schema": schema,
                "table": table,
            }
            text = json.dumps(fixed, ensure_ascii=False, separators=(",", ":"))
            return (_EVENT + text[:-1].replace("%", "%%") + times).encode()

        self._change = source("false", ',"ts_ms":%d,"txId":%d,"lsn":%d},"op":"%b","ts_ms":%d}')
        self._snapshot = source("true", ',"ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}')

    def change(
        self, op: bytes, before: bytes, after: bytes, *, commit_ms: int, xid: int, lsn: int, now_ms: int
    ) -> bytes:
        """An event of the database's log."""
        return self._change % (before, after, commit_ms, xid, lsn, op, now_ms)

    def snapshot(self, row: bytes, *, time_ms: int, lsn: int) -> bytes:
        """An event for a row that was there before."""
        return self._snapshot % (NOTHING, row, time_ms, lsn, time_ms)
