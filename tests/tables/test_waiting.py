"""Rows that wait, batch by batch: let go once, in order, and never lost."""

import pyarrow as pa

from headrace.columns.keyed import Times
from headrace.tables.waiting import HoldRows

HOLD = HoldRows(time="at", wait_us=10)


def rows(*times: int | None) -> pa.Table:
    return pa.table(
        {"at": pa.array(times, pa.timestamp("us", "UTC")), "n": pa.array(range(len(times)), pa.int64())}
    )


def times(table: pa.Table | None) -> list[int | None]:
    assert table is not None
    listed: list[int | None] = table.column("at").cast(pa.int64()).to_pylist()
    return listed


def test_a_row_is_let_go_when_the_watermark_is_far_enough_behind_it() -> None:
    first = HOLD(rows(7, 3, 5), None, Times(0, 0))
    assert (times(first.output), times(first.state)) == ([], [7, 3, 5])
    second = HOLD(rows(6), first.state, Times(0, 15))
    assert (times(second.output), times(second.state)) == ([3, 5], [7, 6])
    third = HOLD(rows(), second.state, Times(15, 16))
    assert (times(third.output), times(third.state)) == ([6], [7])


def test_a_row_that_comes_after_its_time_and_one_without_a_time_do_not_wait() -> None:
    outcome = HOLD(rows(None, 2, 90), None, Times(50, 50))
    assert (times(outcome.output), times(outcome.state), outcome.late) == ([2, None], [90], 0)


def test_a_batch_without_rows_that_lets_none_go_keeps_its_state_as_it_is() -> None:
    state = HOLD(rows(7), None, Times(0, 0)).state
    assert HOLD(rows(), state, Times(0, 5)).state is state
