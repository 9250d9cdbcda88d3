"""The kernels of hopping windows against lists: whatever the batches, order, ties, nulls and late events."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.aggregates import partials_of
from headrace.columns.hopping_windows import PANE, HoppingAssigner, HoppingKernel
from headrace.columns.keyed import Times
from headrace.columns.window_assigners import WindowKernelSettings
from tests.columns.batched import RESULTS, SPECS, Event, events, run_batches, table, watermarks
from tests.columns.test_sliding import EXACT, aggregates

SHAPES = st.sampled_from([(5, 1, 0), (6, 2, 1), (7, 3, 2), (12, 5, 4), (4, 4, 3), (60, 1, 0), (3, 7, 2)])


def kernel(hops: HoppingAssigner) -> HoppingKernel:
    output = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("key", pa.string()), *RESULTS])
    return hops.kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=output))


def summed(hops: HoppingAssigner, batch: list[Event], tasks: int = 2) -> pa.Table:
    """The panes that some tasks make of a batch."""
    sums = hops.partial_aggregation("at", ("key",), SPECS)
    parts = [table(batch[task::tasks]).to_batches(max_chunksize=3) for task in range(tasks)]
    made = [piece for part in parts for piece in sums(part, Times(0, 0))]
    kinds = [("key", pa.string()), (PANE, pa.int64())]
    types = {"value": pa.float64(), "whole": pa.int64()}
    kinds += [(partial.name, partial.type(types)) for partial in partials_of(SPECS)]
    return pa.Table.from_batches(made, schema=pa.schema(kinds))


def windows(hops: HoppingAssigner, at: int) -> list[int]:
    first = (at - hops.offset_us) // hops.every_us
    count = -(-hops.size_us // hops.every_us)
    starts = [(first - n) * hops.every_us + hops.offset_us for n in range(count)]
    return [start for start in starts if start <= at < start + hops.size_us]


@given(batches=events(EXACT), shape=SHAPES, lateness=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_each_window_has_the_events_that_came_in_time(
    batches: list[list[Event]], shape: tuple[int, int, int], lateness: int
) -> None:
    hops = HoppingAssigner(size_us=shape[0], every_us=shape[1], offset_us=shape[2])
    results, late = run_batches(kernel(hops), batches, lateness, lambda batch: summed(hops, batch))
    held: dict[tuple[int, str | None], list[Event]] = defaultdict(list)
    missed = 0
    times = watermarks(batches, lateness)
    for batch, now in zip(batches, times, strict=False):
        for event in batch:
            starts = windows(hops, event.at)
            kept = [start for start in starts if start + hops.size_us > now.late_us]
            missed += len(kept) < len(starts)
            for start in kept:
                held[start, event.key].append(event)
    until = times[-1].watermark_us - hops.size_us
    expected = [
        (start, start + hops.size_us, key, *aggregates(seen))
        for (start, key), seen in held.items()
        if start <= until
    ]
    assert sorted((tuple(row.values()) for row in results), key=repr) == sorted(expected, key=repr)
    assert late == missed


@pytest.mark.parametrize("quiet", [10**9, 10**15])
def test_a_key_that_was_quiet_for_ages_costs_nothing(quiet: int) -> None:
    hops = HoppingAssigner(size_us=5, every_us=1)
    batch = [Event(1, "a", 1.0, 1), Event(quiet, "a", 1.0, 1)]
    outcome = kernel(hops)(summed(hops, batch), None, Times(0, quiet + 5))
    assert outcome.output.num_rows == 10
    assert outcome.state is not None
    assert outcome.state.num_rows == 0


def test_a_batch_that_changes_nothing_keeps_the_state_as_it_is() -> None:
    hops = HoppingAssigner(size_us=6, every_us=3)
    state = kernel(hops)(summed(hops, [Event(9, "a", 1.0, 1)]), None, Times(0, 4)).state
    assert kernel(hops)(summed(hops, []), state, Times(4, 5)).state is state


def test_rows_without_a_time_are_in_no_window() -> None:
    rows = table([Event(1, "a", 1.0, 1)])
    rows = rows.set_column(0, "at", pa.nulls(1, rows["at"].type))
    sums = HoppingAssigner(size_us=5, every_us=1).partial_aggregation("at", ("key",), SPECS)
    assert sum(piece.num_rows for piece in sums(rows.to_batches(), Times(0, 0))) == 0
