"""Work in steps: a generator that yields wherever its caller may do something else, and returns its result.

Reading and writing large messages is such work. The broker does it in slices of its event loop; a caller that
has nothing else to do does it all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


class Steps(Generic[T]):
    """The steps of a generator, to be iterated over; `result` is what it returned after the last one."""

    result: T

    def __init__(self, steps: Generator[object, None, T]) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[object]:
        self.result = yield from self._steps


def run_steps(steps: Generator[object, None, T]) -> T:
    """The result of work in steps that is done all at once."""
    work = Steps(steps)
    for _ in work:
        pass
    return work.result
