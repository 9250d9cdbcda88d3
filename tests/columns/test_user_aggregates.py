"""A user's own aggregate over many groups at once: in all windows, whatever the batches, and its mistakes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns import aggregates
from headrace.columns.aggregates import AggregateSpec, Ranges, partials_of, parts_of_rows, with_state
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.keyed import Times
from headrace.columns.session_windows import SessionAssigner
from headrace.columns.sliding import SlidingKernel
from headrace.columns.user_aggregates import Groups, UserAggregate
from headrace.columns.window_assigners import WindowAssigner, WindowKernelSettings
from headrace.errors import Misuse
from tests.columns.batched import TIME, Event, events, in_time, run_batches, table, watermarks
from tests.columns.test_sliding import EXACT

STATE = pa.struct({"values": pa.list_(pa.int64()), "least": pa.float64()})


class Middle:
    """The middle one of the whole numbers, and the smallest value, as a text."""

    def initial(self) -> Mapping[str, Any]:
        return {"values": [], "least": None}

    def accumulate(self, groups: Groups, whole: pa.Array, value: pa.Array) -> Mapping[str, Any]:
        return {"values": groups.aggregate(whole, "list"), "least": groups.aggregate(value, "min")}

    def merge(self, groups: Groups, states: pa.RecordBatch) -> Mapping[str, Any]:
        return {
            "values": groups.concat(states["values"]),
            "least": groups.aggregate(states["least"], "min"),
        }

    def finish(self, states: pa.RecordBatch) -> Any:
        middles = [sorted(values)[len(values) // 2] for values in states["values"].to_pylist()]
        return [f"{one} {least}" for one, least in zip(middles, states["least"].to_pylist(), strict=True)]


def user(aggregator: Any = None) -> UserAggregate:
    return UserAggregate(
        name="Middle",
        columns=("whole", "value"),
        state=STATE,
        result=pa.string(),
        aggregator=aggregator or Middle(),
    )


SPECS = (
    AggregateSpec(name="events", kind="count"),
    AggregateSpec(name="middle", kind="user", user=user()),
)
OUTPUT = [("key", pa.string()), ("events", pa.int64()), ("middle", pa.string())]


def expected(seen: list[Event]) -> tuple[int, str]:
    wholes, values = sorted(event.whole for event in seen), [e.value for e in seen if e.value is not None]
    return len(seen), f"{wholes[len(wholes) // 2]} {min(values, default=None)}"


def partial_aggregates(assigner: WindowAssigner, batch: list[Event]) -> pa.Table:
    aggregation = assigner.partial_aggregation("at", ("key",), SPECS)
    made = [
        piece
        for part in (batch[::2], batch[1::2])
        for piece in aggregation(table(part).to_batches(max_chunksize=3), Times(0, 0))
    ]
    kinds = [("key", pa.string()), *((place, pa.int64()) for place in assigner.places)]
    types = {"value": pa.float64(), "whole": pa.int64()}
    kinds += [(partial.name, partial.type(types)) for partial in partials_of(SPECS)]
    return pa.Table.from_batches(made, schema=pa.schema(kinds))


def run_windows(assigner: WindowAssigner, batches: list[list[Event]]) -> list[tuple[Any, ...]]:
    output = pa.schema([("start", pa.int64()), ("end", pa.int64()), *OUTPUT])
    kernel = assigner.kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=output))
    results, _ = run_batches(kernel, batches, 100, lambda batch: partial_aggregates(assigner, batch))
    return sorted((tuple(row.values()) for row in results), key=repr)


@given(batches=events(EXACT), shape=st.sampled_from([(6, 6), (6, 2), (60, 4), (3, 7)]))
@settings(max_examples=25, deadline=None)
def test_a_users_aggregate_of_a_hopping_window_is_that_of_its_rows(
    batches: list[list[Event]], shape: tuple[int, int]
) -> None:
    size, every = shape
    found = run_windows(HoppingAssigner(size_us=size, every_us=every), batches)
    until, all_events = watermarks(batches, 100)[-1].watermark_us, [e for batch in batches for e in batch]
    wanted = [
        (start, start + size, key, *expected(seen))
        for start in range(-60 // every * every, until - size + 1, every)
        for key in {event.key for event in all_events}
        if (seen := [e for e in all_events if e.key == key and start <= e.at < start + size])
    ]
    assert found == sorted(wanted, key=repr)


@given(batches=events(EXACT))
@settings(max_examples=25, deadline=None)
def test_a_users_aggregate_of_a_session_does_not_depend_on_the_batches(batches: list[list[Event]]) -> None:
    end = [Event(1_000, "end", None, 0)]
    together = [event for batch in batches for event in batch]
    assigner = SessionAssigner(gap_us=3)
    found = run_windows(assigner, [*batches, end])
    assert found == run_windows(assigner, [together, end])
    assert sum(row[3] for row in found) == len(together)
    for start, stop, key, *result in found:
        seen = [event for event in together if event.key == key and start <= event.at < stop]
        assert tuple(result) == expected(seen)


@given(batches=events(EXACT), size=st.sampled_from([1, 5, 50]), most=st.sampled_from([1, 7, 1 << 20]))
@settings(max_examples=25, deadline=None)
def test_a_users_aggregate_of_a_sliding_window_is_that_of_its_rows(
    batches: list[list[Event]], size: int, most: int
) -> None:
    output = pa.schema([("at", TIME), *OUTPUT])
    kernel = SlidingKernel(time="at", keys=("key",), specs=SPECS, size_us=size, output=output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregates, "MOST_ROWS", most)
        results, _ = run_batches(kernel, batches, 5)
    accepted, until = in_time(batches, 5), watermarks(batches, 5)[-1].watermark_us
    wanted = [
        (event.key, *expected(seen))
        for event in accepted
        if event.at <= until
        for seen in [[e for e in accepted if e.key == event.key and event.at - size < e.at <= event.at]]
    ]
    assert sorted((tuple(row.values())[1:] for row in results), key=repr) == sorted(wanted, key=repr)


def test_an_aggregate_that_is_added_starts_from_its_initial_state() -> None:
    partials = partials_of(SPECS)
    fresh = pa.table({"_headrace_rows": [1], user().column: pa.array([([5], 1.0)], STATE)})
    held = with_state(pa.table({"_headrace_rows": [3]}), fresh, partials)
    assert held[user().column].to_pylist()[0] == {"values": [], "least": None}
    parts = {partial.name: partial.of_table(held) for partial in partials}
    whole = Ranges(firsts=np.array([0]), lasts=np.array([1]), blocks=np.arange(2))
    assert whole.result(SPECS[1], parts).to_pylist() == ["5 1.0"]


def broken(**methods: Callable[..., Any]) -> UserAggregate:
    return user(type("Middle", (Middle,), methods)())


@pytest.mark.parametrize(
    ("aggregate", "says"),
    [
        (broken(accumulate=lambda *_: {"values": []}), "returned values: it has to return a dictionary with"),
        (broken(accumulate=lambda *_: None), "Middle.accumulate() returned NoneType: it has to return"),
        (
            broken(accumulate=lambda *_: {"values": [[1], [2]], "least": [1.0, 2.0]}),
            "Middle.accumulate() returned 2 values for 1 groups: it has to return one for each",
        ),
        (broken(finish=lambda *_: [[1]]), "Middle.finish() returned values that cannot become string"),
    ],
)
def test_a_mistake_in_a_users_class_is_named(aggregate: UserAggregate, says: str) -> None:
    spec = AggregateSpec(name="middle", kind="user", user=aggregate)
    parts = parts_of_rows(table([Event(1, "a", 1.0, 1)]), spec.partials)
    whole = Ranges(firsts=np.array([0]), lasts=np.array([0]), blocks=np.arange(1))
    with pytest.raises(Misuse) as caught:
        whole.result(spec, parts)
    assert says in str(caught.value)


def test_groups_aggregate_and_join_what_arrow_gives() -> None:
    groups = Groups([0, 1], rows=4)
    assert len(groups) == 2
    assert groups.numbers.tolist() == [0, 1, 1, 1]
    assert groups.aggregate(pa.array([2.0, None, 4.0, 5.0]), "count").to_pylist() == [1, 2]
    counted = groups.aggregate(pa.array([1, 2, 2, None]), "count_distinct", pc.CountOptions(mode="all"))
    assert counted.to_pylist() == [1, 2]
    assert groups.concat(pa.array([[1], None, [], [2]])).to_pylist() == [[1], [2]]
