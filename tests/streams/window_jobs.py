"""Jobs that count events by window, and their rows in the words of the reference."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.streams.window_operator import Emit
from headrace.streams.windows import Window
from tests.streams.window_reference import Event, Result, Span

Row = dict[str, Any]
MINUTE_MS = 60_000
SCHEMA = "key string, amount long, at timestamp"
NEW_YEAR_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1000
FAR = 1_000
"""A minute by which all windows of the examples have ended."""


def count_by(
    app: App,
    window: Window,
    *,
    by: str | Sequence[str] = "key",
    emit: Emit = "on_window_close",
    watermark_delay: str = "0 seconds",
    max_records: int = 1_000,
    **options: Any,
) -> Job:
    """A job that counts and sums up events by window and key, and waits for no event unless told to."""
    events = app.stream(
        "events",
        SCHEMA,
        event_time="at",
        watermark_delay=watermark_delay,
        max_records=max_records,
        max_ahead=None,
    )

    @app.job(into=app.topic("counts", key="window_start", partitions=1), **options)
    def counts() -> Rows:
        aggregates = F.count(F.lit(1)).alias("events"), F.sum("amount").alias("total")
        return events.window(window, by=by).agg(*aggregates, emit=emit)

    return counts


def at_minute(minute: float, key: str | None = "a", amount: int = 1) -> Event:
    """An event this many minutes after New Year."""
    return Event(NEW_YEAR_MS + round(minute * MINUTE_MS), key, amount)


def inputs(*parts: Iterable[Event | float]) -> list[dict[str, list[Row]]]:
    """What `headrace.testing.run` takes: a micro-batch for each part; a number is an event at that minute."""
    return [
        {"events": [_row(event if isinstance(event, Event) else at_minute(event)) for event in part]}
        for part in parts
    ]


def counted(rows: Iterable[Row]) -> dict[tuple[float, float], int]:
    """How many events each window has, by its minutes after New Year."""
    return {(_minute(row["window_start"]), _minute(row["window_end"])): row["events"] for row in rows}


def results(rows: Iterable[Row]) -> list[Result]:
    """The rows of a job as the reference has them, sorted."""
    return sorted((Result(_span(row), row["key"], row["events"], row["total"]) for row in rows), key=repr)


def missed(rows: Iterable[Row]) -> list[tuple[Span, Event]]:
    """The rows of a late topic as the reference has them, sorted."""
    parsed = [{name: _parsed(name, value) for name, value in row.items()} for row in rows]
    return sorted(
        ((_span(row), Event(_ms(row["at"]), row["key"], row["amount"])) for row in parsed), key=repr
    )


def _row(event: Event) -> Row:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=event.at_ms)
    return {"key": event.key, "amount": event.amount, "at": time}


def _span(row: Row) -> Span:
    return Span(_ms(row["window_start"]), _ms(row["window_end"]))


def _ms(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))


def _minute(time: datetime) -> float:
    return (_ms(time) - NEW_YEAR_MS) / MINUTE_MS


def _parsed(name: str, value: Any) -> Any:
    return datetime.fromisoformat(value) if name in ("window_start", "window_end", "at") else value
