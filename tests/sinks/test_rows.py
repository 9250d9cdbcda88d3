"""Columns as texts: what Arrow writes is what Python would."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sinks.rows import format_texts


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_are_formatted_as_in_json(numbers: list[float | None]) -> None:
    texts = format_texts(pa.chunked_array([numbers], pa.float64())).to_pylist()
    assert texts == [None if number is None else json.dumps(number) for number in numbers]


@given(st.lists(st.none() | st.datetimes()), st.sampled_from([None, "UTC"]))
def test_times_are_iso_8601_with_microseconds_and_zone(
    times: list[datetime | None], zone: str | None
) -> None:
    column = pa.chunked_array([pa.array(times, pa.timestamp("us")).cast(pa.timestamp("us", zone))])
    ending = "" if zone is None else "Z"
    assert format_texts(column).to_pylist() == [
        None if time is None else time.isoformat(timespec="microseconds") + ending for time in times
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (-0.0, "-0.0"),
        (7, "7"),
        (True, "true"),
        ("ß", "ß"),
        (b"tea", "dGVh"),
        (Decimal("1.50"), "1.50"),
        (date(2026, 1, 1), "2026-01-01"),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), "2026-01-01T12:00:00.000000Z"),
        (["a"], '["a"]'),
    ],
)
def test_values_of_every_type_are_formatted_as_in_json_without_quotes(value: Any, text: str) -> None:
    assert format_texts(pa.chunked_array([[value, None], [value]])).to_pylist() == [text, None, text]
