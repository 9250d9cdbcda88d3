"""Rows by window: the choice of how a window is computed, and when its results are given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from headrace.errors import Misuse
from headrace.streams.columns import quoted
from headrace.streams.event_time import timed_frame
from headrace.streams.late import note_window
from headrace.streams.query_builder import current_builder
from headrace.streams.window_assignment import END, START
from headrace.streams.windows import Hopping, Session, Sliding, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.streams.rows import Rows


Emit = Literal["on_window_close", "on_window_update"]
"""When the result of a window is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """Rows that were put into windows; `agg` says what is computed of each."""

    of: Rows
    window: Window
    by: tuple[str, ...]

    def agg(self, *columns: Column, emit: Emit = "on_window_close") -> Rows:
        """The aggregates of each window and key: window_start, window_end, the keys, the aggregates.

        `emit` says when a result is given: `on_window_close`, once, when the watermark reaches the end of the
        window; `on_window_update`, after each micro-batch that changed it (the job's `trigger_interval` says
        how often that is). A result that is given again replaces the one before: write it to a topic that is
        keyed by `window_start` and the keys.
        """
        self._check(columns, emit)
        note_window(self.of, self.window)
        return current_builder("a window").stateful(
            lambda: self._results(columns, emit),
            # All that can fail is evaluated; which window a row is in does not matter.
            lambda: [self._aggregated(columns)],
        )

    def _results(self, columns: Sequence[Column], emit: Emit) -> Rows:
        if isinstance(self.window, Sliding):
            from headrace.streams.sliding import slide

            return slide(self.of, self.window, self.by, columns)
        from headrace.streams.window_operator import aggregate_windows

        assert isinstance(self.window, Hopping | Session)
        allowed_ms = current_builder("a window").plan.allowed_lateness_ms
        on_update = emit == "on_window_update"
        if allowed_ms and not on_update:
            _check_can_change(self.window, "allowed_lateness=")
        made = aggregate_windows(
            self.of,
            self.window,
            self.by,
            columns,
            on_update=on_update,
            allowed_lateness_ms=0 if on_update else allowed_ms,
        )
        is_whole = isinstance(self.window, Hopping) and made.mode == "append"
        return replace(made, windowed=made.frame if is_whole else None)

    def _check(self, columns: Sequence[Column], emit: Emit) -> None:
        if not columns:
            raise Misuse(
                "agg() needs to know what to compute of each window: for example "
                'agg(F.sum("amount").alias("revenue")).'
            )
        made = self._aggregated(columns)
        self._check_names(made.columns)
        if emit not in get_args(Emit):
            raise Misuse(f"emit={emit!r} is not known: use {' or '.join(get_args(Emit))}.")
        if emit == "on_window_close":
            return
        _check_can_change(self.window, f"emit={emit!r}")

    def _aggregated(self, columns: Sequence[Column]) -> DataFrame:
        """The aggregates by key, without windows."""
        return self.of.frame.groupBy(*map(quoted, self.by)).agg(*columns)

    def _check_names(self, made: Sequence[str]) -> None:
        times = (self.of.event_time,) if isinstance(self.window, Sliding) else (START, END)
        twice = [name for name, count in Counter([*times, *made]).items() if count > 1]
        if twice:
            raise Misuse(
                f"two columns of a window's result would be named {twice[0]!r} (there are window_start, "
                "window_end, the columns of `by`, and the aggregates): give an aggregate another name with "
                ".alias(…)."
            )


def window_rows(rows: Rows, window: Window, by: str | Sequence[str] = ()) -> Windowed:
    """The rows by window of event time, and by the columns `by`."""
    keys = (by,) if isinstance(by, str) else tuple(by or ())
    if not isinstance(window, Window):
        raise Misuse(
            f'window({window!r}): write tumbling("1 minute"), hopping("5 minutes", every="1 minute"), '
            'sliding("5 minutes") or session("5 minutes").'
        )
    timed = replace(rows, frame=timed_frame(rows, "a window"))
    for problem in _problems(timed, keys):
        raise Misuse(problem)
    return Windowed(of=timed, window=window, by=keys)


def _problems(rows: Rows, keys: tuple[str, ...]) -> list[str]:
    """What stands against windows of these rows."""
    if rows.mode not in (None, "append"):
        return [
            "the rows come from a window that gives its results again when they change, and a window after "
            'it would count them again: take emit="on_window_close" in the first one.'
        ]
    columns = ", ".join(rows.frame.columns)
    problems = [
        f"by={name!r}: there is no such column. The columns are {columns}."
        for name in keys
        if name not in rows.frame.columns
    ]
    problems += [
        f"by={name!r}: a column of the result has this name. Rename yours first, with .transform(…)."
        for name in keys
        if name in (START, END)
    ]
    if rows.event_time in keys:
        problems.append(f"by={rows.event_time!r} is the time of the event: the window stands for it.")
    return problems


def _check_can_change(window: Window, wanted: str) -> None:
    """Refuse windows whose results cannot be given more than once."""
    if isinstance(window, Session):
        raise Misuse(
            f"{wanted} is not for sessions: one that grows changes its start or end, and nothing would take "
            'back the row before. Take emit="on_window_close".'
        )
    if isinstance(window, Sliding):
        raise Misuse(
            f'{wanted} is not for sliding(size): each event has its own result. Take emit="on_window_close".'
        )
