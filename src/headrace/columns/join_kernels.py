"""Compiled loops of the join of two streams: which rows of one side lie near those of the other.

Both sides are in order of code and time, the code standing for the key. So the rows that match one row are a
range, and ranges of rows that follow one another never go back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers: TypeAlias = NDArray[np.int64]


@borrowing
def reach(codes: Numbers, times: Numbers, begin: int, code: int, time: int) -> int:
    """The first row from `begin` on that is not before a code and time.

    Steps double until they are too far, so that it costs little whether the row is near or far away: a few
    new rows look into many that were kept, or as many.
    """
    size = len(codes)
    step = 1
    low = begin
    high = begin
    while high < size and (codes[high] < code or (codes[high] == code and times[high] < time)):
        low = high + 1
        high += step
        step *= 2
    high = min(high, size)
    while low < high:
        middle = (low + high) // 2
        if codes[middle] < code or (codes[middle] == code and times[middle] < time):
            low = middle + 1
        else:
            high = middle
    return low


@borrowing
def find_ranges(
    codes: Numbers,
    times: Numbers,
    other_codes: Numbers,
    other_times: Numbers,
    before: int,
    after: int,
    firsts: Numbers,
    lasts: Numbers,
) -> None:
    """Fill in, for each row, the range of the other rows of its code in [t - before, t + after].

    A range goes from its first row to the one behind its last.
    """
    first = 0
    last = 0
    for row in range(len(codes)):
        first = reach(other_codes, other_times, first, codes[row], times[row] - before)
        last = reach(other_codes, other_times, max(first, last), codes[row], times[row] + after + 1)
        firsts[row] = first
        lasts[row] = last


@borrowing
def fill_pairs(firsts: Numbers, lasts: Numbers, begin: int, end: int, ones: Numbers, others: Numbers) -> None:
    """Fill in the pairs of the rows from `begin` to `end`, each with all rows of its range."""
    count = 0
    for row in range(begin, end):
        for other in range(firsts[row], lasts[row]):
            ones[count] = row
            others[count] = other
            count += 1


@borrowing
def find_matched(firsts: Numbers, lasts: Numbers, rows: Numbers) -> int:
    """How many rows are in a range; as many as there is room for are filled in, in their order."""
    count = 0
    done = 0
    for index in range(len(firsts)):
        if lasts[index] > firsts[index]:
            for row in range(max(done, firsts[index]), lasts[index]):
                if count < len(rows):
                    rows[count] = row
                count += 1
            done = max(done, lasts[index])
    return count
