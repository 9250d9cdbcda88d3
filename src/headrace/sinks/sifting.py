"""Finds the rows that a target does not take, by halving: a batch of good rows costs one try."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def sift(count: int, apply: Callable[[int, int], str | None]) -> dict[int, str]:
    """Apply rows 0 to `count`, as many at a time as goes well; why those were refused that were, by index.

    `apply` takes the rows from one index up to another, all of them or none, and says why if it was none. In
    the end everything is applied that was not refused.

    >>> sift(5, lambda first, end: "odd" if first <= 3 < end else None)
    {3: 'odd'}
    """
    refused: dict[int, str] = {}
    waiting = [(0, count)] if count else []
    while waiting:
        first, end = waiting.pop()
        reason = apply(first, end)
        if reason is None:
            continue
        if end - first == 1:
            refused[first] = reason
        else:
            middle = (first + end) // 2
            waiting += [(middle, end), (first, middle)]  # the first half next: rows keep their order
    return refused
