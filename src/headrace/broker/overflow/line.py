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
    """One batch: how it is stored, who hears of it, and what it weighs."""

    attempt: Callable[[], PartitionResult]
    """Stores the batch and gives the answer to its producer; raises `MustWait` while there is no room."""
    answer: asyncio.Future[PartitionResult]
    size: int


class WaitingLine:
    """Batches in the order in which they came. None passes an earlier one, even if it is smaller."""

    def __init__(self) -> None:
        self._waiting: deque[Waiting] = deque()
        self._is_moving = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_ahead(self) -> bool:
        """Whether somebody waits already: false to those in the line when it moves."""
        return bool(self._waiting) and not self._is_moving

    def add(self, waiting: Waiting) -> None:
        """Put a batch at the end of the line."""
        self._waiting.append(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Take a batch out of the line: it waited long enough."""
        self._waiting.remove(waiting)

    def move(self) -> None:
        """Store the batches for which there is room now, as long as the first one finds some."""
        self._is_moving = True
        try:
            while self._waiting:
                first = self._waiting[0]
                try:
                    result = first.attempt()
                except MustWait:
                    return
                self._waiting.popleft()
                answer_with(first.answer, result)
        finally:
            self._is_moving = False

    def dissolve(self, result: PartitionResult) -> None:
        """Send everybody away with the same answer."""
        while self._waiting:
            answer_with(self._waiting.popleft().answer, result)


def answer_with(answer: asyncio.Future[PartitionResult], result: PartitionResult) -> None:
    """Tell a producer, if it is still there."""
    if not answer.done():
        answer.set_result(result)
