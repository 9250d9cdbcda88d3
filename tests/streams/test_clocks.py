"""Devices whose clocks are wrong: their events are dated by when they truly happened."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame

from headrace import App, clock_skew, correct_clock
from headrace.errors import Misuse
from headrace.streams.rows import Rows
from headrace.testing import run

pytestmark = pytest.mark.timeout(240)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = "device string, occurred timestamp, sent timestamp, received timestamp"


def at(text: str, day: int = 1) -> datetime:
    hour, minute, second = map(int, text.split(":"))
    return datetime(2026, 1, day, hour, minute, second, tzinfo=UTC)


def event(
    device: str, occurred: datetime | None, sent: datetime | None, received: datetime
) -> dict[str, Any]:
    return {"device": device, "occurred": occurred, "sent": sent, "received": received}


EVENTS = [
    event("40 minutes behind", at("9:20:00"), at("9:21:00"), at("10:01:00")),
    event("an hour ahead", at("11:00:00"), at("11:00:30"), at("10:00:30")),
    event("right", at("10:00:00"), at("10:00:10"), at("10:00:11")),
    event("years behind", EPOCH, EPOCH, at("10:00:00")),
    event("sent before it occurred", at("10:00:00"), at("9:00:00"), at("10:01:00")),
    event("not sent", at("10:00:00"), None, at("10:01:00")),
    event("without a clock", None, at("9:00:00"), at("10:01:00")),
    event("waited for a month", at("9:00:00"), at("9:00:00", 31), at("9:30:00", 31)),
]

EXPECTED = {
    "40 minutes behind": (at("10:00:00"), "corrected", 2400.0),
    "an hour ahead": (at("10:00:00"), "corrected", -3600.0),
    "right": (at("10:00:00"), "as logged", 1.0),
    "years behind": (
        at("10:00:00"),
        "received",
        (at("10:00:00") - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds(),
    ),
    "sent before it occurred": (at("10:01:00"), "received", 3660.0),
    "not sent": (at("10:00:00"), "as logged", None),
    "without a clock": (at("10:01:00"), "received", 3660.0),
    "waited for a month": (at("9:30:00", 31), "received", 1800.0),
}


def told(rows: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    return {row["device"]: (row["event_time"], row["clock"]["done"], row["clock"]["offset"]) for row in rows}


def test_a_device_40_minutes_behind_occurred_at_9_20_means_10_00(app: App) -> None:
    readings = app.stream(
        "readings",
        SCHEMA,
        event_time=correct_clock("occurred", "sent", "received"),
        watermark_delay="1 minute",
    )

    @app.job(into=app.topic("corrected"))
    def corrected() -> DataFrame:
        return readings.df

    assert told(run(corrected, {"readings": EVENTS})) == EXPECTED


def test_received_is_the_time_of_the_record_unless_told(app: App) -> None:
    fields = "device string, occurred timestamp, sent timestamp"
    clock = correct_clock("occurred", "sent", ignore="0 seconds", max_offset="1 hour")
    readings = app.stream("readings", fields, event_time=clock, watermark_delay="1 minute")

    @app.job(into=app.topic("by_record"))
    def by_record() -> Rows:
        return readings.rows

    records = [
        (None, {"device": name, "occurred": at("9:20:00"), "sent": at("9:21:00")}, received)
        for name, received in (("behind", at("10:01:00")), ("far behind", at("10:21:01")))
    ]
    assert told(run(by_record, {"readings": records})) == {
        "behind": (at("10:00:00"), "corrected", 2400.0),
        "far behind": (at("10:21:01"), "received", 3601.0),
    }


def test_the_skew_of_a_device_is_its_smallest_offset_for_delay_only_adds(app: App) -> None:
    """By windows of the true time."""
    clock = correct_clock("occurred", "sent", "received")
    readings = app.stream("readings", SCHEMA, event_time=clock, watermark_delay="0 seconds")

    @app.job(into=app.topic("skews"))
    def skews() -> Rows:
        return clock_skew(readings, by="device", every="1 hour")

    def behind(minute: int, delay_s: int) -> dict[str, Any]:
        sent = at("9:00:00") + timedelta(minutes=minute)
        return event("press-7", sent, sent, sent + timedelta(minutes=40, seconds=delay_s))

    end = event("other", at("12:30:00"), at("12:30:00"), at("12:30:00"))
    rows = run(skews, {"readings": [behind(21, 9), behind(22, 2), behind(23, 30), end]})
    (row,) = (row for row in rows if row["device"] == "press-7")
    assert (row["window_start"], row["skew"], row["events"]) == (at("10:00:00"), 2402.0, 3)


def test_mistakes_are_refused_with_a_way_out(app: App) -> None:
    with pytest.raises(Misuse, match="correct_clock: max_offset is 'much'"):
        correct_clock("occurred", "sent", max_offset="much")
    with pytest.raises(Misuse, match="name the column by received="):
        correct_clock("occurred", "sent").column()
    plain = app.stream("plain", SCHEMA, event_time="occurred", watermark_delay="1 minute")

    @app.job(into=app.topic("no_skews"))
    def no_skews() -> Rows:
        return clock_skew(plain, by="device")

    with pytest.raises(Misuse, match="needs the column `clock`"):
        run(no_skews, {"plain": []})
