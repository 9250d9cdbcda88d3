"""Event time of a stream: ticks that close windows, and heartbeats of an idle source.

**Ticks** are batches without rows after the last one with rows. Spark moves the watermark between batches:
rows of batch N close windows in batch N+1. Spark itself adds such a batch only for its own operators. A
stream that ticks does it for all operators: when there is nothing new, and something was read since the last
tick, its journal changes, which makes a new batch. The marker holds what had been read (the sum of all
offsets, and the heartbeat), so that a job without input ticks once, also after a restart.

**Heartbeats** are rows that carry only a time, from a stream that has been idle for a while. Event time does
not advance without events: the last windows of a quiet stream stay open, and a join or union waits for the
slowest of its streams. A stream with an idle timeout emits a heartbeat instead. Its time is the newest event
time of the job's streams; once all of them are idle, the time that has passed since then is added.

    orders    ──●──●────●──────●──────        newest 10:07
    payments  ──●─────(idle)─────♥────        a heartbeat of 10:07

The time of a heartbeat is in the journal (`headrace.heartbeat`), so a repeated batch emits the same row. It
is computed from hints: after each batch the driver records the newest event time of each stream and when that
was (`seen.<topic>`). Hints are small files, and a missing or torn file has no effect: what a repeated batch
depends on is in Spark's journal.

While a broker is unavailable, producers cannot write, and their records arrive when it is available again. So
an outage does not count as idle time: that is counted from when the broker answered again, or the job was
started.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.alignment import Alignment
from headrace.spark.offsets import HEARTBEAT, TICK, read_offset_marker, write_offset_marker
from headrace.spark.options import read_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.client.partition import TopicPartition
    from headrace.spark.offsets import Journal, Positions
    from headrace.spark.options import Options


class TimeHints:
    """A folder with one small document for each name."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Replace the document of a name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f".{name}.{os.getpid()}"
        aside.write_text(json.dumps(document), encoding="utf-8")
        aside.replace(self._folder / f"{name}.json")

    def read(self, name: str) -> dict[str, Any] | None:
        """The document of a name, or None."""
        return _read(self._folder / f"{name}.json")

    def read_all(self, kind: str) -> dict[str, dict[str, Any]]:
        """The documents whose names begin with `kind` and a dot, by the rest of their names."""
        found = {path.name: _read(path) for path in sorted(self._folder.glob(f"{kind}.*.json"))}
        return {
            name.removeprefix(f"{kind}.").removesuffix(".json"): document
            for name, document in found.items()
            if document is not None
        }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def total_read(positions: Mapping[TopicPartition, int], heartbeat_ms: int) -> int:
    """A number that changes with everything that can move the watermark.

    >>> from headrace.client.partition import TopicPartition
    >>> total_read({TopicPartition("orders", 0): 12, TopicPartition("orders", 1): 3}, 0)
    15
    """
    return sum(positions.values()) + heartbeat_ms


def next_tick(
    tick: int,
    *,
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    heartbeats_ms: tuple[int, int],
) -> int:
    """The tick marker of a batch from `before` to `after`: it differs from `tick` if the batch is a tick."""
    reads = before != after or heartbeats_ms[0] != heartbeats_ms[1]
    return tick if reads else total_read(after, heartbeats_ms[1])


SEEN: Final = "seen"
BEGAN: Final = "began"


def note_seen(hints: TimeHints, topic: str, newest_ms: int, *, now_s: float) -> None:
    """Publish the newest event time of a stream to the sources of the job."""
    before = hints.read(f"{SEEN}.{topic}") or {}
    newest = max(newest_ms, int(before.get("newest_ms", newest_ms)))
    hints.write(f"{SEEN}.{topic}", {"newest_ms": newest, "at_s": now_s})


class IdleSourceWatermark:
    """Decides when an idle stream emits a heartbeat, and its time."""

    def __init__(
        self, topic: str, idle_after_s: float, hints: TimeHints, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._topic = topic
        self._idle_after_s = idle_after_s
        self._hints = hints
        self._clock = clock
        self._answering_since_s = clock()
        self._began_s: float | None = None
        self._passed_time_on = False

    def broker_was_away(self) -> None:
        """Restart the idle time: until now nothing could be written."""
        self._answering_since_s = self._clock()

    def next_ms(self, beaten_ms: int, *, once: bool) -> int:
        """The time of the next heartbeat, or `beaten_ms`, that of the last, when none is due.

        Called when the stream has nothing new. `once` is a run that ends when it has read everything: the
        passing of time makes only one heartbeat, or the run would never end; and the run does not wait, so
        idle time from before its start counts.
        """
        now = self._clock()
        seen = self._hints.read_all(SEEN)
        reachable_s = 0.0 if once else self._answering_since_s
        if now - max(self._silent_since(seen), reachable_s) < self._idle_after_s or not seen:
            return beaten_ms
        newest = max(int(document["newest_ms"]) for document in seen.values())
        all_silent_s = now - max(reachable_s, *(float(document["at_s"]) for document in seen.values()))
        passes = all_silent_s >= self._idle_after_s and not (once and self._passed_time_on)
        reached = newest + (int(all_silent_s * 1000) if passes else 0)
        is_due = passes and reached - beaten_ms >= self._idle_after_s * 1000
        if newest <= beaten_ms and not is_due:
            return beaten_ms
        self._passed_time_on |= passes
        return reached

    def _silent_since(self, seen: Mapping[str, Mapping[str, Any]]) -> float:
        """When the stream last had a record; if it never had one, when its job first polled it."""
        if self._topic in seen:
            return float(seen[self._topic]["at_s"])
        if self._began_s is None:
            began = self._hints.read(f"{BEGAN}.{self._topic}") or {"at_s": self._clock()}
            self._hints.write(f"{BEGAN}.{self._topic}", began)
            self._began_s = float(began["at_s"])
        return self._began_s


class StreamTime:
    """The options `ticks`, `alignByTime`, `idleTimeout` and `hints`, applied to each batch."""

    def __init__(self, options: Options) -> None:
        folder, idle_timeout = options.text("hints"), options.text("idleTimeout")
        topic = options.text("subscribe") or ""
        hints = None if folder is None else TimeHints(folder)
        self._ticks = options.flag("ticks", default=False)
        self._once = False
        self._pulse: IdleSourceWatermark | None = None
        self.alignment: Alignment | None = None
        if options.flag("alignByTime", default=False):
            self.alignment = Alignment(topic, hints)
        if idle_timeout is not None:
            where = TimeHints(
                options.required("hints", "idleTimeout needs a folder for what streams tell each other")
            )
            self._pulse = IdleSourceWatermark(topic, read_duration_s("idleTimeout", idle_timeout), where)

    def ends_with_what_is_there(self) -> None:
        """Behave as a run that ends when it has read everything."""
        self._once = True
        if self.alignment is not None:
            self.alignment.waits = False

    def broker_was_away(self) -> None:
        """Do not count an outage of the broker as idle time."""
        if self._pulse is not None:
            self._pulse.broker_was_away()

    def first_signs(self, begun: Positions) -> Journal:
        """The markers of a query that has read nothing yet."""
        return write_offset_marker(TICK, total_read(begun, 0)) if self._ticks else {}

    def signs(self, start: Journal, before: Positions, after: Positions) -> Journal:
        """The markers of a batch that begins at `start` and reads from `before` to `after`."""
        beaten_ms = read_offset_marker(start, HEARTBEAT)
        heartbeat_ms = beaten_ms
        if self._pulse is not None and before == after:
            heartbeat_ms = self._pulse.next_ms(beaten_ms, once=self._once)
        signs = write_offset_marker(HEARTBEAT, heartbeat_ms) if heartbeat_ms else {}
        if self._ticks:
            heartbeats = (beaten_ms, heartbeat_ms)
            tick = next_tick(
                read_offset_marker(start, TICK), before=before, after=after, heartbeats_ms=heartbeats
            )
            signs |= write_offset_marker(TICK, tick)
        elif TICK in start:
            signs |= {TICK: start[TICK]}
        return signs
