"""The kernel of deduplication beside a plain loop over all that has passed."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.columns.first_rows import FirstRowsKernel
from headrace.columns.keyed import Times

NEVER = Times(-(1 << 60), -(1 << 60))
WITHIN = 10
EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-60, 60)), max_size=40)


def kernel(within_us: int = WITHIN) -> FirstRowsKernel:
    return FirstRowsKernel(keys=("id",), time="at", arrival="n", within_us=within_us)


def table(ids: Sequence[str], times: Sequence[int]) -> pa.Table:
    columns = {"id": pa.array(ids, pa.string()), "at": pa.array(times, pa.int64())}
    return pa.table({**columns, "n": pa.array(np.arange(len(ids)))})


def expected(parts: Sequence[Sequence[tuple[str, int]]]) -> list[list[tuple[str, int]]]:
    passed: list[tuple[str, int]] = []
    found = []
    for part in parts:
        before = len(passed)
        for key, time in part:
            if all(other != key or abs(at - time) > WITHIN for other, at in passed):
                passed.append((key, time))
        found.append(passed[before:])
    return found


@given(st.lists(EVENTS, max_size=3))
def test_a_row_passes_unless_one_of_its_key_has_passed_nearby(parts: list[list[tuple[str, int]]]) -> None:
    state, found = None, []
    for part in parts:
        outcome = kernel()(table([key for key, _ in part], [time for _, time in part]), state, NEVER)
        state = outcome.state
        found.append([(row["id"], row["at"]) for row in outcome.output.to_pylist()])
    assert found == expected(parts)


def test_one_key_may_come_many_times() -> None:
    count = 300_000  # with a look at each that has passed: 45 billion comparisons
    times = np.arange(count)[::-1] * (WITHIN + 1)
    outcome = kernel()(table(["a"] * count, times), None, NEVER)
    assert outcome.output.num_rows == count
    assert outcome.state is not None
    again = kernel()(table(["a"] * count, times + WITHIN), outcome.state, NEVER)
    assert again.output.num_rows == 0
