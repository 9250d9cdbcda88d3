"""Heartbeats: rows that carry nothing but time, from a stream that has had nothing else for a while.

Event time stands still without events: the last windows of a quiet stream stay open, and a join or union
waits for the slowest of its streams. A stream that declares when it counts as idle gives a heartbeat instead.
Its time is the newest event time of the job's streams; once all of them are idle, the time that has passed
since then is added.

    orders    ──●──●────●──────●──────        newest 10:07
    payments  ──●─────(idle)─────♥────        a heartbeat of 10:07

The time of a heartbeat is in the journal (`headrace.heartbeat`), so a repeated batch gives the same row. What
it is made of are hints: after each batch the driver notes the newest event time of each stream and when that
was (`seen.<topic>`).

While a broker is away, producers cannot write, and what they hold back arrives when it is there again. So the
time of an outage is not silence: it is counted from when the broker answered again, or the job was started.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.spark.time_hints import TimeHints

SEEN: Final = "seen"
BEGAN: Final = "began"


def note_seen(hints: TimeHints, topic: str, newest_ms: int, *, now_s: float) -> None:
    """Tell the sources of the job how far a stream has come in event time."""
    before = hints.read(f"{SEEN}.{topic}") or {}
    newest = max(newest_ms, int(before.get("newest_ms", newest_ms)))
    hints.write(f"{SEEN}.{topic}", {"newest_ms": newest, "at_s": now_s})


class IdleSourceWatermark:
    """Decides when an idle stream gives a heartbeat, and of which time."""

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
        """Count silence from now on: nothing could be written until now."""
        self._answering_since_s = self._clock()

    def next_ms(self, beaten_ms: int, *, once: bool) -> int:
        """The time of the next heartbeat, or `beaten_ms`, that of the last, when none is due.

        It is asked when the stream has nothing new. `once` is a run that ends with what is there: in it, time
        that only passes makes one heartbeat and no more, or the run would never end; and it does not wait,
        so that silence counts from before it was started.
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
        """When the stream last had something; if it never had, when its job first looked."""
        if self._topic in seen:
            return float(seen[self._topic]["at_s"])
        if self._began_s is None:
            began = self._hints.read(f"{BEGAN}.{self._topic}") or {"at_s": self._clock()}
            self._hints.write(f"{BEGAN}.{self._topic}", began)
            self._began_s = float(began["at_s"])
        return self._began_s
