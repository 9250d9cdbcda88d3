"""Compiled loops over rows in order of key and time: which rows a window has, and what they come to.

A window is a range of rows, from its first to its last. Sums add the rows of a range in an order that only
its own rows decide, so that a sum of floating-point numbers is the same to the last bit however the rows were
divided into micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Positions: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int64] | NDArray[np.float64]


@borrowing
def find_slides(
    codes: Positions,
    times: Positions,
    size: int,
    after: int,
    until: int,
    rows: Positions,
    firsts: Positions,
    lasts: Positions,
) -> int:
    """Fill `rows` with those of after < t <= until, and the range (t - size, t] of each; how many they are.

    Rows of one time are in each other's ranges. There must be room for all rows.
    """
    count = 0
    first = 0
    last = -1
    for row in range(len(codes)):
        if row > 0 and codes[row] != codes[row - 1]:
            first = row
        time = times[row]
        while times[first] <= time - size:
            first += 1
        last = max(last, row)
        while last + 1 < len(codes) and codes[last + 1] == codes[row] and times[last + 1] == time:
            last += 1
        if after < time <= until:
            rows[count] = row
            firsts[count] = first
            lasts[count] = last
            count += 1
    return count


@borrowing
def find_stretches(codes: Positions, firsts: Positions, lasts: Positions, gap: int, starts: Positions) -> int:
    """Fill `starts` with the rows that begin a stretch: of another key, or after a gap; how many they are.

    Rows are in order of key and first time; one that begins exactly a gap after the others belongs to them.
    """
    count = 0
    end = 0
    for row in range(len(codes)):
        if row == 0 or codes[row] != codes[row - 1] or firsts[row] > end + gap:
            starts[count] = row
            count += 1
            end = lasts[row]
        else:
            end = max(end, lasts[row])
    return count


@borrowing
def find_hops(
    codes: Positions,
    panes: Positions,
    step: int,
    span: int,
    after: int,
    until: int,
    windows: Positions,
    firsts: Positions,
    lasts: Positions,
) -> int:
    """How many windows of numbers after < n <= until have panes; as many as there is room for are filled in.

    Window n has the panes n·step <= pane < n·step + span of one key.
    """
    count = 0
    start = 0
    while start < len(codes):
        end = start + 1
        while end < len(codes) and codes[end] == codes[start]:
            end += 1
        window = max(after + 1, -((span - 1 - panes[start]) // step))
        first = start
        last = start - 1
        while window <= until:
            while first < end and panes[first] < window * step:
                first += 1
            if first == end:
                break
            if panes[first] >= window * step + span:
                # Nothing for a long time: on to the first window that has this pane.
                window = -((span - 1 - panes[first]) // step)
                continue
            last = max(last, first)
            while last + 1 < end and panes[last + 1] < window * step + span:
                last += 1
            if count < len(windows):
                windows[count] = window
                firsts[count] = first
                lasts[count] = last
            count += 1
            window += 1
        start = end
    return count


@borrowing
def sum_ranges(
    values: Numbers,
    blocks: Positions,
    block_ends: Positions,
    firsts: Positions,
    lasts: Positions,
    heads: Numbers,
    tails: Numbers,
    sums: Numbers,
) -> None:
    """Fill `sums` with the sum of each range, block by block.

    `blocks` numbers stretches of rows, and `block_ends` has the last row of each. A range may begin in the
    middle of a block only if it goes on behind it. `heads` and `tails` are room for the sums from a block's
    beginning and to its end.
    """
    count = len(values)
    for row in range(count):
        begins = row == 0 or blocks[row] != blocks[row - 1]
        heads[row] = values[row] if begins else heads[row - 1] + values[row]
    for row in range(count - 1, -1, -1):
        ends = row == count - 1 or blocks[row] != blocks[row + 1]
        tails[row] = values[row] if ends else tails[row + 1] + values[row]
    for index in range(len(firsts)):
        first = firsts[index]
        last = lasts[index]
        if blocks[first] == blocks[last]:
            sums[index] = heads[last]
            continue
        total = tails[first]
        for block in range(blocks[first] + 1, blocks[last]):
            total += heads[block_ends[block]]
        sums[index] = total + heads[last]


@borrowing
def find_extremes(
    values: Numbers,
    counts: Positions,
    largest: bool,
    firsts: Positions,
    lasts: Positions,
    queue: Positions,
    found: Positions,
) -> None:
    """Fill `found` with the row of each range's smallest or largest value, or -1 where no row has a value.

    Neither the first nor the last rows of ranges may go back. `queue` is room for all rows. As in Spark, NaN
    is larger than any number.
    """
    head = 0
    tail = 0
    ahead = 0
    for index in range(len(firsts)):
        ahead = max(ahead, firsts[index])
        while ahead <= lasts[index]:
            if counts[ahead] > 0:
                while tail > head and _gives_way(values[queue[tail - 1]], values[ahead], largest):
                    tail -= 1
                queue[tail] = ahead
                tail += 1
            ahead += 1
        while head < tail and queue[head] < firsts[index]:
            head += 1
        found[index] = queue[head] if head < tail else -1


@borrowing
def _gives_way(old: float, new: float, largest: bool) -> bool:
    """Whether a value is no extreme any more once a later one is there; only NaN differs from itself."""
    if largest:
        return new >= old or new != new  # noqa: PLR0124
    return new <= old or old != old  # noqa: PLR0124
