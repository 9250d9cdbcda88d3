"""A set of whole numbers that come in long runs: offsets that are done."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranges:
    """Disjoint runs of numbers, first and last included; runs that touch are one."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    def total(self) -> int:
        """How many numbers there are."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Put the numbers from `first` to `last` in."""
        begin = bisect_right(self._firsts, first)
        if begin and self._lasts[begin - 1] >= first - 1:
            begin -= 1
            first = self._firsts[begin]
        end = begin
        while end < len(self._firsts) and self._firsts[end] <= last + 1:
            last = max(last, self._lasts[end])
            end += 1
        self._firsts[begin:end] = [first]
        self._lasts[begin:end] = [last]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The runs, or parts of them, that lie between two numbers."""
        index = max(bisect_right(self._firsts, first) - 1, 0)
        for begin, end in zip(self._firsts[index:], self._lasts[index:], strict=True):
            if begin > last:
                return
            if end >= first:
                yield max(begin, first), min(end, last)

    def after(self, number: int) -> int:
        """The first number from `number` on that is not in."""
        index = bisect_right(self._firsts, number) - 1
        return max(number, self._lasts[index] + 1) if index >= 0 else number

    def take_from(self, number: int) -> int:
        """The first number from `number` on that is not in; all below it are forgotten."""
        gone = 0
        while gone < len(self._firsts) and self._firsts[gone] <= number:
            number = max(number, self._lasts[gone] + 1)
            gone += 1
        del self._firsts[:gone], self._lasts[:gone]
        return number
