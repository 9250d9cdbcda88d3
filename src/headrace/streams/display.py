"""What people and programs see of running jobs: a live table, plain lines, or JSON."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

from headrace.printable import json_text, printable
from headrace.streams.report import HELD_UP
from headrace.streams.supervisor import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from headrace.streams.report import Report
    from headrace.streams.supervisor import JobEvent

HEADINGS: Final = ("job", "rows/s", "lag", "watermark", "batch ms", "state", "late", "dead")
STATE: Final = ("state MB", "state ms")
"""Columns of a wide terminal: how large the state is, and how long the last batch read and wrote it."""
WIDE: Final = 100
UNTIMED: Final = "no time"
LINE_EVERY_S: Final = 10.0
PICTURES_PER_SECOND: Final = 4
STYLES: Final = {State.RUNNING: "", State.FAILED: "red", HELD_UP: "yellow"}


class Display(Protocol):
    """Where the supervisor's words and figures go; open as a context manager."""

    def say(self, text: str) -> None:
        """Say something about the whole: the broker's address, the end."""

    def tell(self, news: JobEvent) -> None:
        """Say what happened to a job."""

    def show(self, reports: Sequence[Report]) -> None:
        """Show how the jobs are doing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Lines:
    """A line for everything that happens, and now and then one for each job: for logs and pipes."""

    def __init__(self, out: IO[str] | None = None, *, every_s: float = LINE_EVERY_S) -> None:
        self._out = out or sys.stdout
        self._every_s = every_s
        self._last_s = time.monotonic()
        self._shown: dict[str, int] = {}
        self._held_up: dict[str, str] = {}
        self._reports: Sequence[Report] = ()

    def say(self, text: str) -> None:
        """Print a line."""
        self._out.write(printable(text) + "\n")
        self._out.flush()

    def tell(self, news: JobEvent) -> None:
        """Print a line."""
        self.say(sentence(news))

    def show(self, reports: Sequence[Report]) -> None:
        """Print a line for each job that went on since the last time, when the time has come.

        What holds a job up is said at once.
        """
        self._reports = reports
        for report in reports:
            self._say_what_holds_up(report)
        if time.monotonic() - self._last_s >= self._every_s:
            self._last_s = time.monotonic()
            self._print()

    def _say_what_holds_up(self, report: Report) -> None:
        reason = report.reason if report.state == HELD_UP else ""
        if reason != self._held_up.get(report.job, ""):
            self.say(f"job {report.job} waits for {reason}" if reason else f"job {report.job} goes on")
        self._held_up[report.job] = reason

    def _print(self) -> None:
        for report in self._reports:
            if report.batches > self._shown.get(report.job, 0):
                self._shown[report.job] = report.batches
                self.say(summary(report))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._print()


class JsonLines:
    """One JSON document in each line: `{"event": "says" | "news" | "reports", …}`."""

    def __init__(self, out: IO[str] | None = None, *, every_s: float = 1.0) -> None:
        self._out = out or sys.stdout
        self._every_s = every_s
        self._last_s = 0.0
        self._reports: Sequence[Report] = ()

    def say(self, text: str) -> None:
        """Print a text."""
        self._print(event="says", text=text)

    def tell(self, news: JobEvent) -> None:
        """Print what happened."""
        self._print(event="news", **asdict(news))

    def show(self, reports: Sequence[Report]) -> None:
        """Print all figures, once a second."""
        self._reports = reports
        if time.monotonic() - self._last_s >= self._every_s:
            self._last_s = time.monotonic()
            self._print_reports()

    def _print_reports(self) -> None:
        self._print(event="reports", jobs=[asdict(report) for report in self._reports])

    def _print(self, **document: Any) -> None:
        self._out.write(json_text(document) + "\n")
        self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._print_reports()


class Board:
    """A live table in a terminal, with the latest news above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._reports: Sequence[Report] = ()
        self._console = console
        self._live = Live(
            console=console, refresh_per_second=PICTURES_PER_SECOND, get_renderable=self._picture
        )

    def say(self, text: str) -> None:
        """Print a text above the table, where it stays."""
        self._live.console.print(printable(text), markup=False, highlight=False)

    def tell(self, news: JobEvent) -> None:
        """Print what happened above the table; problems stand out."""
        style = "" if news.state in (State.RUNNING, State.FINISHED) else "red"
        self._live.console.print(printable(sentence(news)), markup=False, highlight=False, style=style)

    def show(self, reports: Sequence[Report]) -> None:
        """Show these figures from now on."""
        self._reports = reports

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        held_up = [f"{each.job} waits for {each.reason}" for each in self._reports if each.state == HELD_UP]
        picture = table(self._reports, is_wide=self._console.width >= WIDE)
        return Group(picture, *(Text(printable(line), style="yellow") for line in held_up))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.refresh()
        self._live.stop()


def table(reports: Sequence[Report], *, is_wide: bool = False) -> RenderableType:
    """The reports as a table, narrow enough for a terminal of eighty columns unless it `is_wide`."""
    from rich import box
    from rich.table import Table

    picture = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    # Seldom any: the column is there when there is something to see.
    has_untimed = any(report.untimed for report in reports)
    has_state = is_wide and any(report.state_bytes for report in reports)
    for heading in (*HEADINGS, *(STATE if has_state else ()), *([UNTIMED] if has_untimed else [])):
        picture.add_column(
            heading, justify="left" if heading in ("job", "watermark") else "right", no_wrap=True
        )
    for report in reports:
        untimed = [_figure(report.untimed)] if has_untimed else []
        state = _state_cells(report) if has_state else []
        picture.add_row(*_cells(report), *state, *untimed, style=STYLES.get(report.state, "dim"))
    return picture


def _cells(report: Report) -> list[str]:
    figures = (
        report.rows_per_second,
        report.lag,
        None
        if report.watermark is None
        else _short_time(report.watermark)[5:],  # the year goes without saying
        report.batch_ms,
        report.state_rows,
        report.late,
        report.dead,
    )
    mark = "" if report.state == State.RUNNING else f" ({report.state})"
    return [report.job + mark, *(_figure(value) for value in figures)]


def _state_cells(report: Report) -> list[str]:
    size = None if report.state_bytes is None else f"{report.state_bytes / 1e6:,.1f}"
    return [_figure(size), _figure(report.state_ms)]


def _figure(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,.0f}"


def _short_time(time_text: str) -> str:
    """A time of Spark's without its fraction and zone, which is always UTC."""
    return time_text.partition(".")[0].replace("T", " ")


def sentence(news: JobEvent) -> str:
    """What happened to a job, as one line."""
    match news.state:
        case State.WAITING:
            return f"job {news.job} failed: {news.text} It is started again in {news.wait_s or 0:g} s."
        case State.FAILED:
            return f"job {news.job} failed and is not started again: {news.text}"
        case _:
            return f"job {news.job} {news.text}"


def summary(report: Report) -> str:
    """How a job is doing, as one line."""
    lag = "" if report.lag is None else f", lag {report.lag:,}"
    counts = {"late": report.late, "dead": report.dead, "without event time": report.untimed}
    extra = "".join(f", {count:,} {name}" for name, count in counts.items() if count)
    state = "" if not report.state_rows else f", {report.state_rows:,} rows of state"
    time_text = "" if report.watermark is None else f", watermark {_short_time(report.watermark)}"
    batches = "1 batch" if report.batches == 1 else f"{report.batches:,} batches"
    return (
        f"job {report.job}: {report.rows:,} rows in {batches} "
        f"({report.rows_per_second:,.0f} rows/s)"
        f"{lag}{time_text}{state}{extra}"
    )
