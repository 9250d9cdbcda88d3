"""The search for the rows of a batch that fail."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headrace.streams.explanation import Cause
from headrace.streams.failed_rows import _half_numbers, _search


@given(st.integers(1, 64).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_the_rows_that_fail_are_found_with_few_tries(batch: tuple[int, set[int]]) -> None:
    size, failing = batch
    tried: list[range] = []

    def try_(part: Sequence[range]) -> Cause | None:
        tried.append(part[0])
        return Cause(kind="ValueError", message="odd") if failing.intersection(part[0]) else None

    found = _search([range(size)], _half_numbers, try_, str)
    assert [part[0].start for part, _ in found] == sorted(failing)
    if failing == {size - 1}:
        assert len(tried) <= math.ceil(math.log2(size)) + 1
