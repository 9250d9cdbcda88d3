"""Every kernel gives the same with the state that the store hands it as with the whole state."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.aggregates import AggregateSpec, partials_of
from headrace.columns.first_rows import FirstRowsKernel
from headrace.columns.hopping_windows import PANE, HoppingAssigner
from headrace.columns.key_hash import row_hashes
from headrace.columns.keyed import Kernel, Times
from headrace.columns.window_assigners import WindowKernelSettings
from headrace.columns.zoned_windows import WINDOW_END, WINDOW_START, ZonedAssigner
from headrace.state.keyed import KeyedState
from headrace.state.versions import Versions
from headrace.tables.waiting import HoldRows
from tests.columns.batched import RESULTS, SPECS, Event, events, run_batches, table
from tests.state.memory_files import MemoryStateFiles

VALUES = st.integers(-4, 4).map(float)
OUTPUT = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("key", pa.string()), *RESULTS])
EMISSION: list[dict[str, Any]] = [{}, {"allowed_lateness_us": 7}, {"on_update": True}]


def window_settings(specs: tuple[AggregateSpec, ...] = SPECS, **options: Any) -> WindowKernelSettings:
    names = ["start", "end", "key", *(spec.name for spec in specs)]
    output = pa.schema([OUTPUT.field(name) for name in names])
    return WindowKernelSettings(keys=("key",), specs=specs, output=output, **options)


def partial_schema(places: tuple[str, ...], specs: tuple[AggregateSpec, ...]) -> pa.Schema:
    types = {"value": pa.float64(), "whole": pa.int64()}
    partials = [(partial.name, partial.type(types)) for partial in partials_of(specs)]
    return pa.schema([("key", pa.string()), *((place, pa.int64()) for place in places), *partials])


def panes(hops: HoppingAssigner, batch: list[Event], specs: tuple[AggregateSpec, ...] = SPECS) -> pa.Table:
    made = list(hops.partial_aggregation("at", ("key",), specs)(table(batch).to_batches(), Times(0, 0)))
    return pa.Table.from_batches(made, schema=partial_schema((PANE,), specs))


def days(batch: list[Event]) -> pa.Table:
    """Rows of windows of 7, as Spark would bound days."""
    rows = table(batch)
    starts = np.array([event.at // 7 * 7 for event in batch], np.int64)
    rows = rows.append_column(WINDOW_START, pa.array(starts)).append_column(WINDOW_END, pa.array(starts + 7))
    aggregation = ZonedAssigner(zone="UTC").partial_aggregation("at", ("key",), SPECS)
    made = list(aggregation(rows.to_batches(), Times(0, 0)))
    return pa.Table.from_batches(made, schema=partial_schema((WINDOW_START, WINDOW_END), SPECS))


@given(batches=events(VALUES), lateness=st.integers(0, 20), options=st.sampled_from(EMISSION))
@settings(max_examples=30, deadline=None)
def test_hopping_windows(batches: list[list[Event]], lateness: int, options: dict[str, Any]) -> None:
    hops = HoppingAssigner(size_us=6, every_us=2, offset_us=1)
    run_batches(hops.kernel(window_settings(**options)), batches, lateness, lambda batch: panes(hops, batch))


@given(batches=events(VALUES), lateness=st.integers(0, 20), options=st.sampled_from(EMISSION))
@settings(max_examples=20, deadline=None)
def test_windows_of_a_time_zone(batches: list[list[Event]], lateness: int, options: dict[str, Any]) -> None:
    run_batches(ZonedAssigner(zone="UTC").kernel(window_settings(**options)), batches, lateness, days)


@given(batches=events(VALUES), lateness=st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_rows_that_wait_for_a_table(batches: list[list[Event]], lateness: int) -> None:
    run_batches(HoldRows(time="at", wait_us=5), batches, lateness)


@given(batches=events(VALUES), lateness=st.integers(0, 20))
@settings(max_examples=30, deadline=None)
def test_deduplication(batches: list[list[Event]], lateness: int) -> None:
    kernel = FirstRowsKernel(keys=("key",), time="at", arrival="arrival", within_us=9)

    def arranged(batch: list[Event]) -> pa.Table:
        rows = table(sorted(batch, key=repr))
        return rows.append_column("arrival", pa.array(np.arange(rows.num_rows)))

    run_batches(kernel, batches, lateness, arranged)


def run(state: KeyedState, version: int, rows: pa.Table, times: Times) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in state.advance(version, rows, times).to_pylist())


def test_a_change_of_when_results_are_given_counts_for_windows_that_are_open() -> None:
    """A window of 1 to 7 would have closed at 7; with a lateness of 4 its result is given at 3."""
    hops, files = HoppingAssigner(size_us=6, every_us=6, offset_us=1), MemoryStateFiles()
    first: Kernel = hops.kernel(window_settings())
    early: Kernel = hops.kernel(window_settings(allowed_lateness_us=4))
    rows = panes(hops, [Event(2, "a", 1.0, 1)])
    before = KeyedState(files=files, keys=("key",), kernel=first)
    assert run(before, 0, rows, Times(0, 1)) == []
    after = KeyedState(files=files, keys=("key",), kernel=early)
    assert [row[:3] for row in run(after, 1, rows.slice(0, 0), Times(1, 3))] == [(1, 7, "a")]
    assert run(after, 2, rows.slice(0, 0), Times(3, 7)) == []


def test_an_aggregate_that_is_added_starts_empty_for_keys_of_before() -> None:
    hops, files = HoppingAssigner(size_us=6, every_us=6), MemoryStateFiles()
    few = SPECS[:1]
    before = KeyedState(files=files, keys=("key",), kernel=hops.kernel(window_settings(few)))
    for version, key in enumerate("ab"):
        run(before, version, panes(hops, [Event(1, key, 1.0, 1)], few), Times(0, 0))
    after = KeyedState(files=files, keys=("key",), kernel=hops.kernel(window_settings(SPECS)))
    run(after, 2, panes(hops, [Event(2, "b", 5.0, 5)]), Times(0, 0))
    closed = after.advance(3, panes(hops, []), Times(0, 6)).to_pylist()
    found = sorted((row["key"], row["events"], row["total"]) for row in closed)
    assert found == [("a", 1, None), ("b", 2, 5.0)]
    assert Versions(files).read(3).rows == 0


def test_a_batch_writes_what_it_changed() -> None:
    hops, files = HoppingAssigner(size_us=1000, every_us=1000), MemoryStateFiles()
    state = KeyedState(files=files, keys=("key",), kernel=hops.kernel(window_settings()))
    run(state, 0, panes(hops, [Event(1, f"{number}", 1.0, 1) for number in range(5000)]), Times(0, 0))
    before = Versions(files).read(0)
    run(state, 1, panes(hops, [Event(2, "7", 1.0, 1)]), Times(0, 0))
    after = Versions(files).read(1)
    assert (before.rows, after.rows) == (5000, 5000)
    assert [run.rows for run in after.runs["groups"]] == [5000, 1]


@pytest.mark.parametrize(
    ("one", "other"),
    [([0.0], [-0.0]), ([float("nan")], [-float("nan")])],
    ids=["zeros", "NaNs"],
)
def test_equal_keys_have_equal_hashes(one: list[float], other: list[float]) -> None:
    seed = np.array([1, 2], np.uint64)
    hashes = [row_hashes(pa.table({"a": values}), ["a"], seed).tolist() for values in (one, other)]
    assert hashes[0] == hashes[1]


KEYS = st.tuples(st.sampled_from(["", "a", "b", None]), st.sampled_from([None, 0, 1, 2]))


@given(st.lists(KEYS, max_size=20))
@settings(max_examples=50, deadline=None)
def test_hashes_tell_keys_apart_in_any_batch(keys: list[tuple[str | None, int | None]]) -> None:
    seed = np.array([3, 4], np.uint64)
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])

    def hashes(some: list[tuple[str | None, int | None]]) -> list[int]:
        columns = {"a": [a for a, _ in some], "b": [b for _, b in some]}
        return row_hashes(pa.table(columns, schema=schema), ["a", "b"], seed).tolist()

    each = dict(zip(keys, hashes(keys), strict=True))
    assert len(set(each.values())) == len(each)
    assert hashes(keys[::-1]) == [each[key] for key in keys[::-1]]
