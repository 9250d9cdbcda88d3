"""Change events as Debezium writes them, without a schema around them.

    {"before": …, "after": …, "source": {…}, "op": "c", "ts_ms": …}

`op` is r for a row of a snapshot, c, u, d for one that was inserted, updated, deleted, and t for one that a
TRUNCATE took. A delete is followed by a record without a value, so that compaction forgets the key.
"""

from __future__ import annotations

import json
from typing import Final

NOTHING: Final = b"null"
_EVENT: Final = b'{"before":%b,"after":%b,"source":'
_CHANGED: Final = b',"ts_ms":%d,"txId":%d,"lsn":%d},"op":"%b","ts_ms":%d}'
_WAS_THERE: Final = b',"ts_ms":%d,"txId":null,"lsn":%d},"op":"r","ts_ms":%d}'
_NEW: Final = b'{"before":null,"after":%b,"source":%b,"ts_ms":%d,"txId":%d,"lsn":%%d},"op":"%b","ts_ms":%d}'


class Envelopes:
    """The events of one table; rows are given as JSON."""

    __slots__ = ("_change", "_snapshot", "_source")

    def __init__(self, *, name: str, database: str, schema: str, table: str) -> None:
        def source(snapshot: str) -> bytes:
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
            return text[:-1].replace("%", "%%").encode()

        self._source = source("false")
        self._change = _EVENT + self._source + _CHANGED
        self._snapshot = _EVENT + source("true") + _WAS_THERE

    def change(
        self, op: bytes, before: bytes, after: bytes, *, commit_ms: int, xid: int, lsn: int, now_ms: int
    ) -> bytes:
        """An event of the database's log."""
        return self._change % (before, after, commit_ms, xid, lsn, op, now_ms)

    def template(self, op: bytes, after: bytes, *, commit_ms: int, xid: int, now_ms: int) -> bytes:
        """What formats events of one transaction that have no `before`: the fields of `after`, then `lsn`."""
        return _NEW % (after, self._source, commit_ms, xid, op, now_ms)

    def snapshot(self, row: bytes, *, time_ms: int, lsn: int) -> bytes:
        """An event for a row that was there before."""
        return self._snapshot % (NOTHING, row, time_ms, lsn, time_ms)
