"""The records of a work and its expected number of rows; both are computed from the event number.

Event n happens n / rate seconds after the start, and its key follows from n. After each part of the events,
one event per key is an hour ahead: these advance the watermark, so that every window before them closes,
whether a system tracks time globally, per partition or per key.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.streams.works import Work

BEGIN_MS = 1_767_225_600_000  # 2026-01-01
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEHIND_MS = 20 * 60_000
"""How far late events are behind."""
BURST_MS = 30_000
"""How long a key of a session is busy, and then silent."""
PAID_AFTER_MS = 120_000
LAST_ROWS = 100
"""Enough for every partition to have one."""
PIECE = 50_000
"""So many records are made at once."""
CLOSING_KEYS = 500
"""At most so many events move time on where time is not kept by key."""
PRIME = 7_919
"""Spreads numbers over the keys of a table."""

Numbers = npt.NDArray[np.int64]
Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Some events of one topic: whose they are, and when they happened; records carry `stamps_ms`."""

    ids: Numbers
    times_ms: Numbers
    stamps_ms: Numbers
    field: str = "amount"

    def __len__(self) -> int:
        return len(self.ids)

    def messages(self, begin: int, end: int) -> list[Message]:
        """Some of them as records for a producer."""
        texts = _iso_texts(self.times_ms[begin:end])
        ids, stamps = self.ids[begin:end].tolist(), self.stamps_ms[begin:end].tolist()
        return [
            {
                "key": str(one),
                "value": f'{{"id":{one},"{self.field}":{one % 1000}.25,"at":"{text}"}}',
                "timestamp": stamp,
            }
            for one, text, stamp in zip(ids, texts, stamps, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Events that are written together, by the role of their topic, and those that advance the watermark."""

    events: dict[str, Events]
    closing: dict[str, Events]

    @property
    def count(self) -> int:
        """The number of events, without those that advance the watermark."""
        return sum(map(len, self.events.values()))


class Inputs:
    """All events of one trial."""

    def __init__(self, work: Work, *, first: int, then: int, rate: int, table_rows: int) -> None:
        self._work = work
        self._rate = rate if work.kind != "streams" else rate / 5
        self.table_rows = table_rows
        self.first = self._part(first, 0, BEGIN_MS)
        after_ms = BEGIN_MS + int(first / self._rate * 1000) + 2 * HOUR_MS
        self.then = self._part(then, first, after_ms)

    @property
    def roles(self) -> tuple[str, ...]:
        """The topics that there are."""
        if self._work.kind == "streams":
            return ("events", "payments")
        return ("events", "table") if self._work.kind == "table" else ("events",)

    def table(self) -> Iterator[list[Message]]:
        """The rows of the table, if there is one, in pieces.

        The last ones belong to no event, and are of the far future: they say that no older row is to come.
        """
        for begin in range(0, self.table_rows, PIECE):
            end = min(begin + PIECE, self.table_rows)
            yield [_table_row(one, BEGIN_MS - DAY_MS) for one in range(begin, end)]
        if self.table_rows:
            last = range(self.table_rows, self.table_rows + LAST_ROWS)
            yield [_table_row(one, BEGIN_MS + 30 * DAY_MS) for one in last]

    def rows_of_first(self) -> int:
        """The minimum number of rows after the first part."""
        return self._rows([self.first.events])

    def rows_of_all(self) -> tuple[int, int]:
        """The minimum and maximum number of rows at the end: the last watermark events may count."""
        parts = [self.first.events, self.first.closing, self.then.events]
        return self._rows(parts), self._rows([*parts, self.then.closing])

    def counted(self) -> tuple[int, int] | None:
        """What all counts of windows add up to, at least and at most; None where rows are not counts."""
        if self._work.kind not in ("tumbling", "hopping", "session"):
            return None
        windows = self._work.size_ms // self._work.every_ms if self._work.kind == "hopping" else 1
        events = self.first.count + len(self.first.closing["events"]) + self.then.count
        return windows * events, windows * (events + len(self.then.closing["events"]))

    def _rows(self, parts: list[dict[str, Events]]) -> int:
        if self._work.kind == "streams":
            return sum(len(part["payments"]) for part in parts if part)
        ids = np.concatenate([part["events"].ids for part in parts])
        times = np.concatenate([part["events"].times_ms for part in parts])
        if self._work.kind in ("sliding", "table"):
            return len(ids)
        if self._work.late_share:
            # Late events of the first micro-batches come in time, and have windows of their own.
            on_time = np.concatenate([part["events"].stamps_ms == part["events"].times_ms for part in parts])
            ids, times = ids[on_time], times[on_time]
        if self._work.kind == "session":
            return _count_sessions(ids, times, self._work.gap_ms)
        return _count_windows(ids, times, self._work.size_ms, self._work.every_ms)

    def _part(self, count: int, offset: int, begin_ms: int) -> Part:
        if self._work.kind == "streams":
            half = count // 2
            ids = np.arange(offset, offset + half)
            times = self._times(half, begin_ms)
            later = times + PAID_AFTER_MS
            orders = Events(ids=ids, times_ms=times, stamps_ms=times)
            payments = Events(ids=ids, times_ms=later, stamps_ms=later, field="paid")
            return Part(events={"events": orders, "payments": payments}, closing={})
        stamps = self._times(count, begin_ms)
        numbers = np.arange(offset, offset + count)
        times = stamps
        if self._work.late_share:
            each = round(1 / self._work.late_share)
            times = np.where(numbers % each == each - 1, stamps - BEHIND_MS, stamps)
        events = Events(ids=self._ids(numbers, stamps), times_ms=times, stamps_ms=stamps)
        return Part(events={"events": events}, closing={"events": self._closing(int(stamps[-1]))})

    def _times(self, count: int, begin_ms: int) -> Numbers:
        return (begin_ms + np.arange(count) * 1000 // self._rate).astype(np.int64)

    def _ids(self, numbers: Numbers, times: Numbers) -> Numbers:
        if self._work.kind == "table":
            return (numbers * PRIME) % self.table_rows
        if self._work.kind == "session":
            half = self._work.keys // 2
            return 2 * (numbers % half) + times // BURST_MS % 2
        return numbers % self._work.keys

    def _closing(self, last_ms: int) -> Events:
        keys = self._work.keys if self._work.kind != "table" else min(CLOSING_KEYS, self.table_rows)
        times = np.full(keys, last_ms + HOUR_MS)
        return Events(ids=np.arange(keys), times_ms=times, stamps_ms=times)


def _table_row(one: int, time_ms: int) -> Message:
    value = f'{{"id":{one},"name":"name of {one}","city":"city {one % 1000}"}}'
    return {"key": str(one), "value": value, "timestamp": time_ms}


def _count_windows(ids: Numbers, times_ms: Numbers, size_ms: int, every_ms: int) -> int:
    """How many windows have an event: a pane opens as many as overlap, less those of the pane before."""
    panes = np.unique(np.stack([ids, times_ms // every_ms]), axis=1)
    apart = np.where(np.diff(panes[0]) == 0, np.diff(panes[1]), size_ms)
    overlap = size_ms // every_ms
    return int(np.minimum(apart, overlap).sum()) + overlap


def _count_sessions(ids: Numbers, times_ms: Numbers, gap_ms: int) -> int:
    order = np.lexsort((times_ms, ids))
    ids, times_ms = ids[order], times_ms[order]
    return int(((np.diff(ids) != 0) | (np.diff(times_ms) > gap_ms)).sum()) + 1


def _iso_texts(times_ms: Numbers) -> list[str]:
    """Times as JSON has them; the text of each second is made once."""
    seconds: dict[int, str] = {}
    texts = []
    for time_ms in times_ms.tolist():
        second, ms = divmod(time_ms, 1000)
        text = seconds.get(second)
        if text is None:
            text = seconds[second] = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        texts.append(f"{text}.{ms:03}Z")
    return texts
