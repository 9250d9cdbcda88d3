"""Days and local times as numbers, against Python's own calendar."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.values.calendar import days_from_civil, days_in_month, microseconds_of_local
from headrace.columns.values.time_reference import read_date, read_timestamp

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@settings(deadline=None)
@given(st.dates())
def test_days_are_counted_as_python_counts_them(day: date) -> None:
    assert days_from_civil(day.year, day.month, day.day) == (day - date(1970, 1, 1)).days
    assert read_date(day.isoformat()) == (day - date(1970, 1, 1)).days


@settings(deadline=None)
@given(st.dates())
def test_the_day_after_the_last_of_a_month_is_in_the_next(day: date) -> None:
    last = day.replace(day=days_in_month(day.year, day.month))
    assert last == date.max or (last + timedelta(days=1)).day == 1


@settings(deadline=None)
@given(st.datetimes(min_value=datetime(1900, 1, 2), max_value=datetime(9999, 12, 30)))  # noqa: DTZ001 (local)
def test_a_local_time_becomes_the_instant_that_python_says(local: datetime) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    clock = (local.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    instant = (local.replace(tzinfo=berlin) - EPOCH) // timedelta(microseconds=1)
    assert microseconds_of_local(clock, berlin) == instant
    assert read_timestamp(local.isoformat(), berlin) == instant
    assert (
        read_timestamp(f"{local.isoformat(timespec='microseconds')} Europe/Berlin", ZoneInfo("UTC"))
        == instant
    )
