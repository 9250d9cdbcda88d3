"""The kernels of sessions against lists: whatever the batches, tasks, order, ties, nulls and late events."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.aggregates import partials_of
from headrace.columns.keyed import Times
from headrace.columns.session_windows import FIRST, LAST, SessionAssigner, SessionKernel
from headrace.columns.window_assigners import WindowKernelSettings
from tests.columns.batched import RESULTS, SPECS, Event, events, run_batches, table, watermarks
from tests.columns.test_sliding import EXACT, aggregates

KINDS = [("key", pa.string()), (FIRST, pa.int64()), (LAST, pa.int64())]
TYPES = {"value": pa.float64(), "whole": pa.int64()}
KINDS += [(partial.name, partial.type(TYPES)) for partial in partials_of(SPECS)]


def kernel(gap: int) -> SessionKernel:
    output = pa.schema([("start", pa.int64()), ("end", pa.int64()), ("key", pa.string()), *RESULTS])
    return SessionAssigner(gap_us=gap).kernel(WindowKernelSettings(keys=("key",), specs=SPECS, output=output))


def stretches(gap: int, batch: list[Event], times: Times, tasks: int = 2) -> pa.Table:
    """The stretches that some tasks make of a batch."""
    sums = SessionAssigner(gap_us=gap).partial_aggregation("at", ("key",), SPECS)
    parts = [table(batch[task::tasks]).to_batches(max_chunksize=3) for task in range(tasks)]
    made = [piece for part in parts for piece in sums(part, times)]
    return pa.Table.from_batches(made, schema=pa.schema(KINDS))


def sessions(seen: list[Event], gap: int) -> list[list[Event]]:
    """The events of one key, as those that follow each other."""
    found: list[list[Event]] = []
    for event in sorted(seen, key=lambda event: event.at):
        if found and event.at <= found[-1][-1].at + gap:
            found[-1].append(event)
        else:
            found.append([event])
    return found


@given(batches=events(EXACT), gap=st.integers(1, 9), lateness=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_each_session_has_the_events_that_came_in_time(
    batches: list[list[Event]], gap: int, lateness: int
) -> None:
    times = iter(time for time in watermarks(batches, lateness) for _ in range(2))
    results, late = run_batches(
        kernel(gap), batches, lateness, lambda batch: stretches(gap, batch, next(times))
    )
    expected, held, missed = [], dict[str | None, list[Event]](), 0
    for batch, now in zip([*batches, []], watermarks(batches, lateness), strict=True):
        for event in batch:
            if event.at + gap <= now.late_us:
                missed += 1
            else:
                held.setdefault(event.key, []).append(event)
        for key, seen in held.items():
            closed = [one for one in sessions(seen, gap) if one[-1].at + gap <= now.watermark_us]
            expected += [(one[0].at, one[-1].at + gap, key, *aggregates(one)) for one in closed]
            held[key] = [event for event in seen if not any(event in one for one in closed)]
    assert sorted((tuple(row.values()) for row in results), key=repr) == sorted(expected, key=repr)
    assert late == missed


def test_a_batch_that_changes_nothing_keeps_the_state_as_it_is() -> None:
    times = Times(0, 4)
    state = kernel(6)(stretches(6, [Event(9, "a", 1.0, 1)], times), None, times).state
    assert kernel(6)(stretches(6, [], times), state, Times(4, 14)).state is state


def test_rows_without_a_time_are_in_no_session() -> None:
    rows = table([Event(1, "a", 1.0, 1)])
    rows = rows.set_column(0, "at", pa.nulls(1, rows["at"].type))
    assert (
        list(
            SessionAssigner(gap_us=5).partial_aggregation("at", ("key",), SPECS)(
                rows.to_batches(), Times(0, 0)
            )
        )
        == []
    )
