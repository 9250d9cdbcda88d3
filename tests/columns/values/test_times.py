"""Dates and timestamps: days as Python's calendar counts them, units of numbers, and limits."""

import random
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.values import UnsupportedType, value_parser
from headrace.columns.values.times import (
    days_from_civil,
    days_in_month,
    microseconds_of_local,
    read_date,
    read_timestamp,
)
from tests.columns.values.comparing import fast, reference

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


EVENT = pa.struct([("at", pa.timestamp("us", "UTC"))])
NEW_YEAR_US = 1_767_225_600_123_456
"""2026-01-01T00:00:00.123456Z."""


def read(*numbers: int | str, time_unit: str = "auto") -> list[object]:
    values = [b'{"at":%s}' % str(number).encode() for number in numbers]
    answers = fast(EVENT, values, time_unit=time_unit)
    assert answers == reference(EVENT, values, time_unit=time_unit)
    return [answer.error or answer.value["at"] for answer in answers]


def read_csv(*fields: str, time_unit: str = "auto") -> list[object]:
    parser = value_parser("csv", pa.struct([*EVENT, ("n", pa.int32())]), time_unit=time_unit)
    parsed = parser.parse(pa.array([f"{field},1".encode() for field in fields]))
    errors = [None] * len(fields) if parsed.errors is None else parsed.errors.to_pylist()
    return [
        row["at"].value if row.is_valid else error for row, error in zip(parsed.values, errors, strict=True)
    ]


@pytest.mark.parametrize(
    ("number", "micros"),
    [
        (1_767_225_600, 1_767_225_600_000_000),
        (1_767_225_600_123, 1_767_225_600_123_000),
        (1_767_225_600_123_456, NEW_YEAR_US),
        (1_767_225_600_123_456_789, NEW_YEAR_US),
        (-86_400, -86_400_000_000),
        (0, 0),
    ],
)
def test_the_size_of_a_number_says_its_unit(number: int, micros: int) -> None:
    assert read(number) == [micros]


def test_each_unit_ends_where_the_next_one_begins() -> None:
    ends = [10**11, 10**14, 10**17]
    assert read(*(end - 1 for end in ends)) == [(10**11 - 1) * 10**6, (10**14 - 1) * 10**3, 10**17 - 1]
    assert read(*ends) == [10**14, 10**14, 10**14]
    assert read(*(-end for end in ends)) == [-(10**14), -(10**14), -(10**14)]


def test_a_unit_that_is_set_holds_for_every_number() -> None:
    assert read(1_767_225_600_123, time_unit="ms") == [1_767_225_600_123_000]
    assert read(86_400_000, time_unit="ms") == [86_400_000_000]
    assert read(10**12, time_unit="us") == [10**12]
    assert read(1_999, -1_999, time_unit="ns") == [1, -2]
    assert read(253_402_300_799, time_unit="s") == [253_402_300_799_000_000]


def test_a_number_beyond_the_year_9999_is_no_timestamp() -> None:
    numbers = [253_402_300_800, 99_999_999_999_999, -62_167_219_201, 9_999_999_999_999_999_999]
    assert read(*numbers, time_unit="s") == [f"at: {number} is not a timestamp" for number in numbers]
    far = [10**19, 10**30]
    assert read(*far) == [f"at: {number} is not a timestamp" for number in far]
    assert read(2**63 - 1, time_unit="us") == [f"at: {2**63 - 1} is not a timestamp"]


def test_numbers_of_any_length_and_unit_are_read_as_the_reference_reads_them() -> None:
    chance = random.Random(3)
    numbers = [chance.choice((1, -1)) * chance.randrange(10 ** chance.randrange(1, 22)) for _ in range(4_000)]
    for unit in ("auto", "s", "ms", "us", "ns"):
        read(*numbers, time_unit=unit)


def test_a_csv_field_of_nine_digits_is_a_time_and_one_of_four_a_year() -> None:
    assert read_csv("1767225600", "1767225600123", "-1767225600", "2026") == [
        1_767_225_600_000_000,
        1_767_225_600_123_000,
        -1_767_225_600_000_000,
        1_767_225_600_000_000,
    ]
    assert read_csv("20260101", "99999999999999999999") == [
        "at: 20260101 is not a timestamp",
        "at: 99999999999999999999 is not a timestamp",
    ]


def test_with_a_unit_every_whole_number_of_a_csv_field_is_a_time() -> None:
    assert read_csv("86400", "0", time_unit="ms") == [86_400_000, 0]


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="'minutes' is not a unit of time: use auto, s, ms, us, ns"):
        value_parser("json", EVENT, time_unit="minutes")
