"""Work in steps: a generator that yields wherever its caller may do something else, and returns its result.

Reading and writing large messages is such work. The broker does it in slices of its event loop; a caller that
has nothing else to do does it all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")


def run_steps(steps: Generator[object, None, T]) -> T:
    """The result of work in steps that is done all at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
