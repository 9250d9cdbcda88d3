"""Rows that come again: which of them passes, whatever the batches are."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace import App
from headrace.columns.first_rows import FirstRowsKernel, find_firsts
from headrace.columns.keyed import Times
from headrace.columns.preparation import prepare_windows
from headrace.errors import Misuse
from headrace.streams.job import Job
from headrace.streams.rows import Rows
from headrace.testing import run
from headrace.testing.jobs import TOPIC_STEPS

pytestmark = pytest.mark.timeout(240)

START = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS, WITHIN = 20, 10
Event = tuple[str | None, int | None]
"""An id, and a time in seconds."""


def unique(app: App) -> Job:
    events = app.stream(
        "events", "id string, n int, at timestamp", event_time="at", watermark_delay=f"{LATENESS} seconds"
    )

    @app.job(into=app.topic("unique", partitions=1))
    def unique() -> Rows:
        return events.deduplicate("id", within=f"{WITHIN} seconds")

    return unique


def rows_of(events: Sequence[Event], first: int = 0) -> list[dict[str, Any]]:
    return [
        {"id": key, "n": n, "at": None if time is None else START + timedelta(seconds=time)}
        for n, (key, time) in enumerate(events, first)
    ]


def reference(parts: Sequence[Sequence[Event]]) -> list[int]:
    """The numbers of the events that pass: each is held against all of its id that have passed before."""
    passed: list[tuple[str, int]] = []
    numbers, number, watermark = [], 0, -(1 << 40)
    for part in parts:
        for key, time in part:
            known = key is not None and time is not None
            repeats = known and any(key == other and abs(time - at) <= WITHIN for other, at in passed)  # type: ignore[operator]
            if not repeats and (time is None or time > watermark):
                numbers.append(number)
                if key is not None and time is not None:
                    passed.append((key, time))
            number += 1
        newest = max((time for _, time in part if time is not None), default=-(1 << 40))
        watermark = max(watermark, newest - LATENESS)
    return numbers


PARTS: list[list[Event]] = [
    [("a", 100), ("a", 100), ("b", 105), ("a", 110), ("a", 111), (None, 100), (None, 100)],
    [
        *[("a", 101), ("b", 95), ("b", 94), ("a", 121), ("a", 122), ("c", None), ("c", None)],
        *[("e", 91), ("d", 102), ("d", 103), ("d", 113), ("d", 114), ("b", 116)],
    ],
]
"""When the second part comes, the watermark is at 91."""


def check(parts: Sequence[Sequence[Event]], crash: tuple[str, int] | None = None) -> None:
    inputs, first = [], 0
    for part in parts:
        inputs.append({"events": rows_of(part, first)})
        first += len(part)
    rows = run(unique(App("shop")), inputs, crash=crash)
    assert sorted(row["n"] for row in rows) == reference(parts)


def test_the_first_row_of_an_id_passes_and_those_near_it_do_not(spark: SparkSession) -> None:
    assert reference(PARTS) == [0, 2, 4, 5, 6, 9, 11, 12, 13, 15, 17, 19]
    check(PARTS, crash=("marked", 2))


def test_batches_change_nothing(spark: SparkSession) -> None:
    events = [event for part in PARTS for event in part if event != ("e", 91)]
    check([events])


KERNEL = FirstRowsKernel(keys=("id",), time="at", arrival="n", within_us=WITHIN * 1_000_000)
TYPES = pa.schema([("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
EVENTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.one_of(st.integers(0, 60), st.just(None))), max_size=12
)


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(EVENTS, min_size=1, max_size=5))
def test_the_kernel_passes_what_plain_python_does_and_forgets_what_is_over(parts: list[list[Event]]) -> None:
    state, numbers, first, watermark = None, [], 0, -(1 << 40)
    base = int(START.timestamp())
    for part in parts:
        table = pa.Table.from_pylist(rows_of(part, first)[::-1], schema=TYPES)
        late = watermark
        newest = max((time for _, time in part if time is not None), default=late)
        times = Times((base + late) * 1_000_000, (base + late) * 1_000_000)
        outcome = KERNEL(table.append_column("more", table["n"]), state, times)
        numbers += outcome.output["more"].to_pylist()
        watermark = max(watermark, newest - LATENESS)
        # The batch without rows that follows: it knows the new watermark.
        closing = Times(times.watermark_us, (base + watermark) * 1_000_000)
        empty = table.append_column("more", table["n"]).slice(0, 0)
        state = KERNEL(empty, outcome.state, closing).state
        first += len(part)
        assert state is not None
        oldest = START + timedelta(seconds=watermark - WITHIN) if watermark > 0 else START
        assert all(at > oldest or watermark <= 0 for at in state["at"].to_pylist())
    assert numbers == reference(parts)


def test_the_kernel_compiles_nothing_that_the_preparation_did_not() -> None:
    prepare_windows()
    before = len(find_firsts.signatures)  # type: ignore[attr-defined]  # numba's own
    table = pa.Table.from_pylist(rows_of([("a", 1), ("a", 2), ("b", 3)]), schema=TYPES)
    outcome = KERNEL(table, None, Times(-1, -1))
    assert outcome.output["id"].to_pylist() == ["a", "b"]
    assert KERNEL(table, outcome.state, Times(-1, -1)).output.num_rows == 0
    assert len(find_firsts.signatures) == before  # type: ignore[attr-defined]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    parts=st.lists(EVENTS.filter(bool), min_size=2, max_size=3),
    crash=st.one_of(st.none(), st.tuples(st.sampled_from(TOPIC_STEPS), st.integers(0, 1))),
)
def test_no_crash_changes_what_passes(
    spark: SparkSession, parts: list[list[Event]], crash: tuple[str, int] | None
) -> None:
    check(parts, crash)


def test_what_follows_a_join_is_not_late_for_being_held_back(app: App) -> None:
    times = {"event_time": "at", "watermark_delay": "1 second"}
    left = app.stream("left", "id string, at timestamp", **times)  # type: ignore[arg-type]
    right = app.stream("right", "id string, at timestamp", **times)  # type: ignore[arg-type]

    names = app.table("names", "id string, name string, since timestamp", key="id", valid_from="since")

    @app.job(into=app.topic("unpaid"))
    def unpaid() -> Rows:
        alone = left.join(right, on="id", within="1 minute", how="left").transform(
            lambda joined: joined.filter("right_at is null")
        )
        firsts = alone.deduplicate("id", within="10 seconds")
        return firsts.join(names, on="id", delay="1 minute")

    rows = rows_of([("a", 0), ("a", 5)])
    # At 100 the join has let the rows go, a minute after them; they wait for another minute.
    soon, later = rows_of([("y", 100)]), rows_of([("z", 300)])
    name = {"id": "a", "name": "Alice", "since": START}
    parts = [{"left": rows + soon, "right": soon}, {"names": [name], "left": later, "right": later}]
    assert [(row["at"], row["name"]) for row in run(unpaid, parts)] == [(START, "Alice")]


def test_a_mistake_is_explained(spark: SparkSession) -> None:
    frame = spark.readStream.format("rate").load().selectExpr("value", "timestamp as at", "array(1) as list")
    timed = Rows(frame=frame.withWatermark("at", "1 second"), event_time="at", watermark_delay="1 second")
    for rows, columns, within, message in [
        (Rows(frame=frame), ["value"], "1 hour", "deduplicate\\(\\) needs to know when"),
        (timed, [], "1 hour", "needs the columns that tell rows apart"),
        (timed, ["id"], "1 hour", "'id', which the rows do not have"),
        (timed, ["list"], "1 hour", "'list', which have parts"),
        (timed, ["value"], "a while", "within is 'a while'"),
    ]:
        with pytest.raises(Misuse, match=message):
            rows.deduplicate(*columns, within=within)
