"""The line of batches that wait for room in one partition: first come, first stored."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.overflow.errors import MustWait

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.protocol.produce import PartitionResult


class Waiting(NamedTuple):
    """One batch: how it is stored, who hears of it, and how many records it has."""

    attempt: Callable[[], PartitionResult]
    """Stores the batch and gives the answer to its producer; raises `MustWait` while there is no room."""
    answer: asyncio.Future[PartitionResult]
    records: int


class WaitingLine:
    """Batches in the order in which they came. None passes an earlier one, even if it is smaller."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: Waiting) -> None:
        """Put a batch at the end of the line."""
        self._waiting.append(waiting)

    def leave(self, waiting: Waiting) -> list[Waiting]:
        """Take a batch out of the line with all behind it: a producer's next batch is no good without it."""
        place = self._waiting.index(waiting)
        leaving = [self._waiting.pop() for _ in range(len(self._waiting) - place)]
        return leaving[::-1]

    def move(self) -> None:
        """Store the batches for which there is room now, as long as the first one finds some."""
        while self._waiting:
            first = self._waiting[0]
            try:
                result = first.attempt()
            except MustWait:
                return
            self._waiting.popleft()
            answer_with(first.answer, result)

    def dissolve(self, result: PartitionResult) -> None:
        """Send everybody away with the same answer."""
        while self._waiting:
            answer_with(self._waiting.popleft().answer, result)


def answer_with(answer: asyncio.Future[PartitionResult], result: PartitionResult) -> None:
    """Tell a producer, if it is still there."""
    if not answer.done():
        answer.set_result(result)
