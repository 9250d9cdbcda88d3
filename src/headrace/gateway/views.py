"""Rows of views by key and by the values of columns: bounded queries, never SQL.

A copy of a view is read from its log when it is first asked for, and brought up to the end of the log for
each query: an answer has every row that was committed before the request. Idle copies are dropped, and a view
that is too large for a copy is refused. Each user has copies of their own, read with their own rights.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetOutOfRange
from headrace.feeds.catalog import find_view
from headrace.feeds.view_log import ViewLog, warn
from headrace.gateway.errors import HttpError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from headrace.feeds.catalog import ViewDescription
    from headrace.feeds.view_log import ViewRecord

MAX_VIEW_BYTES: Final = 256 << 20
MAX_COPIES: Final = 16
IDLE_S: Final = 300.0
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000


class ViewRows(NamedTuple):
    """The answer of a query."""

    rows: list[bytes]
    """The rows as JSON."""
    is_complete: bool
    """Whether no more rows match."""


class ViewCopies:
    """The copies of one user's views. Queries run in one thread, in turn."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._cluster: Cluster | None = None
        self._copies: dict[str, ViewCopy] = {}
        self._thread: ThreadPoolExecutor | None = None

    async def row(self, loop: asyncio.AbstractEventLoop, view: str, key: str) -> bytes:
        """The row with this key as JSON; raises an error with 404 if there is none."""
        return await loop.run_in_executor(self._executor(), self._row, view, key)

    async def rows(
        self, loop: asyncio.AbstractEventLoop, view: str, where: Mapping[str, str], limit: int
    ) -> ViewRows:
        """Rows whose columns have these values."""
        return await loop.run_in_executor(self._executor(), self._rows, view, where, limit)

    def close(self) -> None:
        """Disconnect."""
        if self._thread is not None:
            self._thread.submit(self._disconnect)
            self._thread.shutdown(wait=False)
            self._thread = None

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="views")
        return self._thread

    def _row(self, view: str, key: str) -> bytes:
        copy = self._copy(view)
        row = copy.find(key)
        if row is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"the view {view!r} has no row with the key {key!r}")
        return row

    def _rows(self, view: str, where: Mapping[str, str], limit: int) -> ViewRows:
        return self._copy(view).select(where, limit)

    def _copy(self, view: str) -> ViewCopy:
        """The copy of a view, with all rows that are committed now."""
        cluster = self._cluster = self._cluster or Cluster.of(self._bootstrap, client_id="headrace-gateway")
        now = time.monotonic()
        for name in [name for name, copy in self._copies.items() if now - copy.used_at > IDLE_S]:
            del self._copies[name]
        description = find_view(cluster, view)
        kept = self._copies.pop(view, None)
        copy = kept if kept is not None and kept.is_of(description) else ViewCopy(cluster, description)
        try:
            copy.catch_up()
        except OffsetOutOfRange:  # compaction has removed records that this copy has not read
            copy = ViewCopy(cluster, description)
            copy.catch_up()
        while len(self._copies) >= MAX_COPIES:
            del self._copies[min(self._copies, key=lambda name: self._copies[name].used_at)]
        self._copies[view] = copy
        copy.used_at = now
        return copy

    def _disconnect(self) -> None:
        self._copies.clear()
        if self._cluster is not None:
            self._cluster.close()


class ViewCopy:
    """The rows of one view in memory, as JSON."""

    def __init__(self, cluster: Cluster, view: ViewDescription) -> None:
        self._view = view
        self._log = ViewLog(cluster, view.topic)
        self._topic_id = self._log.topic_id()
        self._offsets: list[int] = []
        self._rows: dict[bytes | None, tuple[str, bytes]] = {}
        """The key as text, and the row, by the keys of records."""
        self._record_keys: dict[str, bytes | None] = {}
        self._bytes = 0
        self.used_at = time.monotonic()

    def is_of(self, view: ViewDescription) -> bool:
        """Whether the view is still the same one: it may have been created again."""
        return view == self._view and self._log.topic_id() == self._topic_id

    def catch_up(self) -> None:
        """Read the log to its current end; raises `OffsetOutOfRange` if that is no longer possible."""
        ranges = self._log.offset_ranges()
        for number in range(len(self._offsets), len(ranges)):
            first, end = ranges[number]
            self._apply(self._log.rows(number, first, end, warn) if first < end else ())
            self._offsets.append(end)
        while any(at < end for at, (_, end) in zip(self._offsets, ranges, strict=True)):
            for fetched in self._log.follow(self._offsets, warn):
                self._apply(fetched.records)
                self._offsets[fetched.partition] = fetched.next_offset

    def find(self, key: str) -> bytes | None:
        """The row with this key: the text of its only column, or a JSON object of its columns."""
        if len(self._view.key) > 1:
            try:
                document = json.loads(key)
            except ValueError:
                return None
            if not isinstance(document, dict) or document.keys() != set(self._view.key):
                return None
            key = _key_text(document, self._view.key)
        if key not in self._record_keys:
            return None
        return self._rows[self._record_keys[key]][1]

    def select(self, where: Mapping[str, str], limit: int) -> ViewRows:
        """The rows whose columns have these values, at most `limit`."""
        unknown = where.keys() - set(self._view.columns)
        if unknown:
            raise HttpError(
                HTTPStatus.BAD_REQUEST,
                f"the view {self._view.name!r} has no column {min(unknown)!r}: it has "
                f"{', '.join(self._view.columns)}",
            )
        found: list[bytes] = []
        for _, value in self._rows.values():
            if where:
                row = json.loads(value)
                if any(_text(row.get(name)) != wanted for name, wanted in where.items()):
                    continue
            if len(found) == limit:
                return ViewRows(found, is_complete=False)
            found.append(value)
        return ViewRows(found, is_complete=True)

    def _apply(self, records: Iterable[ViewRecord]) -> None:
        for record in records:
            previous = self._rows.pop(record.key, None)
            if previous is not None:
                self._bytes -= len(previous[1])
                del self._record_keys[previous[0]]
            key = None if record.value is None else _read_key(record.value, self._view.key)
            if key is not None and record.value is not None:
                self._rows[record.key] = (key, record.value)
                self._record_keys[key] = record.key
                self._bytes += len(record.value)
        if self._bytes > MAX_VIEW_BYTES:
            raise HttpError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"the view {self._view.name!r} has more than {MAX_VIEW_BYTES >> 20} MiB: read its changes, "
                "or store it in a database",
            )


def _read_key(value: bytes, columns: tuple[str, ...]) -> str | None:
    """The key of a row as text; None if the value is not a row: change feeds report that."""
    try:
        row = json.loads(value)
        return _key_text(row, columns)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _key_text(row: Mapping[str, Any], columns: tuple[str, ...]) -> str:
    if len(columns) == 1:
        return _text(row[columns[0]])
    return json.dumps([_text(row[name]) for name in columns])


def _text(value: Any) -> str:
    """A JSON value as it is written in a URL."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
