"""The streams benchmark knows how many rows a work must give."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from bench.streams.inputs import Events, Inputs
from bench.streams.plan import FULL
from bench.streams.works import WORKS, Work

RATE = 20


def inputs(name: str, **more: int) -> tuple[Work, Inputs]:
    work = replace(next(work for work in WORKS if work.name == name), keys=6)
    return work, Inputs(work, first=3_000, then=5_000, rate=RATE, table_rows=more.get("table_rows", 0))


def pairs(*parts: Events) -> list[tuple[int, int]]:
    return [pair for part in parts for pair in zip(part.ids.tolist(), part.times_ms.tolist(), strict=True)]


def before_the_last(given: Inputs) -> list[tuple[int, int]]:
    return pairs(given.first.events["events"], given.first.closing["events"], given.then.events["events"])


@pytest.mark.parametrize("name", ["tumbling", "hopping", "overlap"])
def test_windows_are_as_many_as_have_an_event(name):
    work, given = inputs(name)
    windows: Counter[tuple[int, int]] = Counter()
    for key, time_ms in before_the_last(given):
        last = time_ms - time_ms % work.every_ms
        for start_ms in range(last, time_ms - work.size_ms, -work.every_ms):
            windows[key, start_ms] += 1
    assert given.rows_of_all()[0] == len(windows)
    assert given.counted()[0] == windows.total()


def test_sessions_are_as_many_as_gaps_leave():
    work, given = inputs("session")
    times = defaultdict(list)
    for key, time_ms in before_the_last(given):
        times[key].append(time_ms)
    sessions = 0
    for of_key in times.values():
        of_key.sort()
        sessions += 1 + sum(b - a > work.gap_ms for a, b in pairwise(of_key))
    assert given.rows_of_all()[0] == sessions > len(times)


def test_every_payment_has_an_order_in_time():
    work, given = inputs("streams")
    orders = dict(pairs(given.first.events["events"], given.then.events["events"]))
    payments = pairs(given.first.events["payments"], given.then.events["payments"])
    assert all(abs(time_ms - orders[key]) <= work.within_ms for key, time_ms in payments)
    assert given.rows_of_all() == (len(payments), len(payments))


def test_every_event_finds_a_row_of_the_table():
    _, given = inputs("table", table_rows=100)
    rows = {message["key"] for messages in given.table() for message in messages}
    sent = {message["key"] for message in given.then.events["events"].messages(0, 5_000)}
    assert sent == {str(number) for number in range(100)} < rows


def test_late_events_are_behind_in_time_but_not_in_the_log():
    _, given = inputs("late")
    events = given.first.events["events"]
    assert (events.stamps_ms[1:] >= events.stamps_ms[:-1]).all()
    assert (events.times_ms != events.stamps_ms).mean() == pytest.approx(0.01)


def test_values_are_json_with_the_time_in_milliseconds():
    _, given = inputs("tumbling")
    (message,) = given.first.events["events"].messages(1, 2)
    assert message["value"] == '{"id":1,"amount":1.25,"at":"2026-01-01T00:00:00.050Z"}'


def test_every_system_has_its_events_in_the_plan():
    assert FULL.first.keys() == FULL.then.keys() >= FULL.shares.keys()
