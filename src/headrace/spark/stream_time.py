"""What a stream with event time does beside reading: it keeps in step, ticks, and gives heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.alignment import Alignment
from headrace.spark.durations import read_duration_s
from headrace.spark.idle_source import IdleSourceWatermark
from headrace.spark.positions import HEARTBEAT, TICK, read_sign, write_sign
from headrace.spark.ticks import next_tick, what_was_read
from headrace.spark.time_hints import TimeHints

if TYPE_CHECKING:
    from headrace.spark.options import Options
    from headrace.spark.positions import Journal, Positions


class StreamTime:
    """The options `ticks`, `alignByTime`, `idleTimeout` and `hints`, and what they come to in each batch."""

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
        """Behave as a run does that ends."""
        self._once = True
        if self.alignment is not None:
            self.alignment.waits = False

    def broker_was_away(self) -> None:
        """Do not take for silence that nothing could be written."""
        if self._pulse is not None:
            self._pulse.broker_was_away()

    def first_signs(self, begun: Positions) -> Journal:
        """The signs of a query that has read nothing yet."""
        return write_sign(TICK, what_was_read(begun, 0)) if self._ticks else {}

    def signs(self, start: Journal, before: Positions, after: Positions) -> Journal:
        """The signs for a batch that begins at `start` and reads from `before` to `after`."""
        beaten_ms = read_sign(start, HEARTBEAT)
        heartbeat_ms = beaten_ms
        if self._pulse is not None and before == after:
            heartbeat_ms = self._pulse.next_ms(beaten_ms, once=self._once)
        signs = write_sign(HEARTBEAT, heartbeat_ms) if heartbeat_ms else {}
        if self._ticks:
            heartbeats = (beaten_ms, heartbeat_ms)
            tick = next_tick(read_sign(start, TICK), before=before, after=after, heartbeats_ms=heartbeats)
            signs |= write_sign(TICK, tick)
        elif TICK in start:
            signs |= {TICK: start[TICK]}
        return signs
