"""The kernel of sliding windows against lists: whatever the batches, order, ties, nulls and late events."""

import math

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.keyed import Times, key_codes
from headrace.columns.sliding import SlidingKernel
from tests.columns.batched import (
    RESULTS,
    SPECS,
    TIME,
    Event,
    events,
    in_time,
    run_batches,
    table,
    watermarks,
)

EXACT = st.integers(-40, 40).map(lambda number: number / 4)
ANY = st.floats(allow_nan=True, allow_infinity=True)


def kernel(size: int) -> SlidingKernel:
    output = pa.schema([("at", TIME), ("key", pa.string()), *RESULTS])
    return SlidingKernel(time="at", keys=("key",), specs=SPECS, size_us=size, output=output)


def expected(accepted: list[Event], size: int, until: int) -> list[tuple[object, ...]]:
    return [
        (event.at, event.key, *aggregates(seen))
        for event in accepted
        if event.at <= until
        for seen in [[e for e in accepted if e.key == event.key and event.at - size < e.at <= event.at]]
    ]


def aggregates(seen: list[Event]) -> tuple[object, ...]:
    values = [event.value for event in seen if event.value is not None]
    wholes = [event.whole for event in seen]
    some = (sum(values), min(values), max(values), sum(values) / len(values)) if values else (None,) * 4
    return (len(seen), len(values), *some, sum(wholes), min(wholes))


@given(batches=events(EXACT), size=st.sampled_from([1, 3, 10, 200]), lateness=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_each_event_in_time_has_its_window_once(batches: list[list[Event]], size: int, lateness: int) -> None:
    results, late = run_batches(kernel(size), batches, lateness)
    accepted = in_time(batches, lateness)
    until = watermarks(batches, lateness)[-1].watermark_us
    found = [(int(row.pop("at").timestamp() * 1e6 + 0.5), *row.values()) for row in results]
    assert sorted(found, key=repr) == sorted(expected(accepted, size, until), key=repr)
    assert late == sum(map(len, batches)) - len(accepted)


@given(rows=events(ANY), size=st.sampled_from([3, 64, 200, 1000]), cut=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_floating_point_sums_do_not_depend_on_the_batches(
    rows: list[list[Event]], size: int, cut: int
) -> None:
    together = [event for batch in rows for event in batch]
    parts = [together[n : n + cut] for n in range(0, len(together), cut)] or [[]]
    end = [Event(10_000, "end", None, 0)]
    one, _ = run_batches(kernel(size), [together, end], 100, is_stored=False)
    other, _ = run_batches(kernel(size), [*parts, end], 100, is_stored=False)
    assert sorted(map(repr, one)) == sorted(map(repr, other))


def test_results_are_in_order_of_time() -> None:
    batch = [Event(5, "b", 1.0, 1), Event(3, "a", 1.0, 1), Event(4, "b", 1.0, 1), Event(3, "c", 1.0, 1)]
    output = kernel(10)(table(batch), None, Times(0, 4)).output
    assert [at.microsecond for at in output["at"].to_pylist()] == [3, 3, 4]


def test_a_batch_that_changes_nothing_keeps_the_state_as_it_is() -> None:
    state = kernel(10)(table([Event(9, "a", 1.0, 1)]), None, Times(0, 4)).state
    assert kernel(10)(table([]), state, Times(4, 8)).state is state
    assert kernel(10)(table([Event(3, "a", 1.0, 1)]), state, Times(4, 8)).late == 1


def test_what_no_window_can_reach_any_more_is_forgotten() -> None:
    state = kernel(5)(table([Event(at, "a", 1.0, 1) for at in (1, 5, 6, 12)]), None, Times(0, 10)).state
    assert state is not None
    assert [at.microsecond for at in state["at"].to_pylist()] == [6, 12]


def test_nan_is_larger_than_any_number_as_in_spark() -> None:
    batch = [Event(at, "a", value, 1) for at, value in ((1, math.nan), (2, 3.0), (3, math.inf))]
    rows = kernel(10)(table(batch), None, Times(0, 9)).output.to_pylist()
    assert [row["smallest"] for row in rows[1:]] == [3.0, 3.0]
    assert all(math.isnan(row["largest"]) for row in rows)


def test_keys_of_several_columns_have_one_number_each_however_many_they_are() -> None:
    many = 70_000
    rows = pa.table({"a": range(many), "b": [n % 50_000 for n in range(many)], "c": [None] * many})
    codes = key_codes(pa.concat_tables([rows, rows]), ["a", "b", "c"])
    assert len(set(codes.tolist())) == many
    assert codes[:many].tolist() == codes[many:].tolist()
    assert key_codes(rows.slice(0, 3), []).tolist() == [0, 0, 0]
