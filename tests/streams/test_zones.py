"""Windows of a time zone: days of 23 and 25 hours, and hours that the clock shows twice or not at all."""

from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.streams.window_assignment import in_zone, zoned_bounds
from headrace.streams.windows import Hopping, hopping, tumbling
from headrace.testing import run

pytestmark = pytest.mark.timeout(300)

BERLIN = ZoneInfo("Europe/Berlin")
SHAPES = ((24, 0), (24, 6), (1, 0), (6, 1), (7 * 24, 4 * 24))
"""Sizes and offsets in hours."""
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu", "UTC")


def in_berlin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=BERLIN)


def test_a_day_in_berlin_has_23_or_25_hours_twice_a_year(app: App) -> None:
    sales = app.stream("sales", "amount long, at timestamp", event_time="at", watermark_delay="1 minute")

    @app.job(into=app.topic("days"), late_topic="days.late")
    def days() -> Rows:
        return sales.window(tumbling("1 day", zone="Europe/Berlin")).agg(F.count("*").alias("hours"))

    march, october = date(2026, 3, 28), date(2026, 10, 24)
    parts: list[list[dict[str, Any]]] = []
    for first in (march, october):
        start = in_berlin(first).astimezone(UTC)
        parts.append([{"amount": 1, "at": start + timedelta(hours=hour)} for hour in range(72)])
    # One for the second day, which is over; and one for the third: the watermark is a minute before its end.
    late = [in_berlin(march) + timedelta(days=1, hours=3), in_berlin(march) + timedelta(days=2, hours=3)]
    parts[1] += [{"amount": 2, "at": at} for at in (*late, datetime(2026, 11, 1, tzinfo=UTC))]
    results = run(days, [{"sales": part} for part in parts], crash=("computed", 2))
    found = {row["window_start"]: (row["window_end"], row["hours"]) for row in results}
    for first, hours in ((march, [24, 23, 25]), (october, [24, 25, 23])):
        for number, count in enumerate(hours):
            day = first + timedelta(days=number)
            assert found[in_berlin(day)] == (in_berlin(day + timedelta(days=1)), count)
    assert len(found) == len(results)
    (missed,) = results.late
    assert (missed["amount"], missed["window_start"]) == (2, "2026-03-28T23:00:00.000000Z")


def bounds(at: datetime, zone: str, hours: int, offset_hours: int) -> tuple[datetime, datetime]:
    """In plain Python: local time without its zone has days of 24 hours."""
    local = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    origin = datetime(1970, 1, 1) + timedelta(hours=offset_hours)  # noqa: DTZ001  local time
    size = timedelta(hours=hours)
    start = origin + (local - origin) // size * size
    return real(start, zone), real(start + size, zone)


def real(local: datetime, zone: str) -> datetime:
    """The moment at which clocks first show a local time, or skip it."""
    return local.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)


def test_every_time_is_in_the_window_that_local_clocks_say(spark: SparkSession) -> None:
    random = Random(1)
    first = datetime(1995, 1, 1, tzinfo=UTC)
    times = [first + timedelta(minutes=random.randint(0, 60 * 24 * 365 * 30)) for _ in range(500)]
    changes = [datetime(2023, 4, 27, 20, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)]
    times += [change + timedelta(minutes=10 * step) for change in changes for step in range(60)]
    frame = spark.createDataFrame([(time,) for time in times], "at timestamp")
    for zone in ZONES:
        columns = [
            F.struct(*zoned_bounds(window_of(hours, offset, zone), F.col("at"))).alias(f"{hours} {offset}")
            for hours, offset in SHAPES
        ]
        for row in frame.select("at", *columns).toArrow().to_pylist():
            for hours, offset in SHAPES:
                found = tuple(row[f"{hours} {offset}"].values())
                assert found == bounds(row["at"], zone, hours, offset), (row, zone)


def window_of(hours: int, offset_hours: int, zone: str) -> Hopping:
    return tumbling(f"{hours} hours", offset=f"{offset_hours} hours", zone=zone)


@pytest.mark.parametrize(
    "window",
    [
        tumbling("30 minutes", zone="Europe/Berlin"),
        tumbling("1 day 30 seconds", zone="Europe/Berlin"),
    ],
)
def test_other_windows_have_no_zone(app: App, window: Any) -> None:
    with pytest.raises(Misuse, match="tumbling ones of whole hours or days"):
        in_zone(Rows(frame=None, event_time="at"), window)  # type: ignore[arg-type]
    assert hopping("1 day", every="1 hour").zone is None
