"""Long requests in slices: no request keeps the event loop from the other connections for long.

A request that has worked for a slice of time pauses and goes on in a later turn of the loop. Of all long
requests only one works at a time, and one slice of it runs in each turn: how long the others wait does not
depend on how many long requests there are. The next one begins when the first ends, or waits for the disk
or for another client.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.protocol.steps import Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable

T = TypeVar("T")

SLICE_SECONDS: Final = 0.004
"""How long a request works before it pauses."""
CHECK_EVERY: Final = 16
"""Items of a loop that are done between two looks at the clock."""


class SliceFuture(asyncio.Future[None]):
    """What a long request waits for while it pauses: requests behind it on its connection wait as well."""

    turn: Turn


class Slices:
    """The long requests of a broker, in the order in which they first paused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._active: Turn | None = None
        self._waiting: deque[Turn] = deque()

    def turn(self) -> Turn:
        """The turn of one request, whose first slice begins now."""
        return Turn(self)

    def wait(self, turn: Turn) -> SliceFuture:
        """A future that is done when the request may go on."""
        turn.future = SliceFuture(loop=self._loop)
        turn.future.turn = turn
        if self._active is None:
            self._active = turn
        if self._active is turn:
            self._loop.call_soon(_go_on, turn)
        else:
            self._waiting.append(turn)
        return turn.future

    def release(self, turn: Turn) -> None:
        """Let the next request work."""
        if self._active is turn:
            self._active = self._waiting.popleft() if self._waiting else None
            if self._active is not None:
                self._loop.call_soon(_go_on, self._active)
        elif turn in self._waiting:
            self._waiting.remove(turn)


def _go_on(turn: Turn) -> None:
    if turn.future is not None and not turn.future.done():
        turn.future.set_result(None)


class Turn:
    """The time that one request may take, slice by slice."""

    __slots__ = ("_deadline", "_slices", "future")

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._deadline = time.perf_counter() + SLICE_SECONDS
        self.future: SliceFuture | None = None

    @property
    def is_over(self) -> bool:
        """Whether the request has worked for a slice, and should pause."""
        return time.perf_counter() >= self._deadline

    async def pause(self) -> None:
        """Let the other connections have their turn, if this request has worked for a slice."""
        if time.perf_counter() >= self._deadline:
            await self._slices.wait(self)
            self.future = None
            self._deadline = time.perf_counter() + SLICE_SECONDS

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with a pause between them when one is due."""
        for item in items:
            yield item
            if time.perf_counter() >= self._deadline:
                await self.pause()

    async def run(self, steps: Generator[object, None, T]) -> T:
        """The result of a generator that yields wherever it may pause."""
        work = Steps(steps)
        for _ in work:
            if time.perf_counter() >= self._deadline:
                await self.pause()
        return work.result

    def release(self) -> None:
        """Let the next long request work: this one is done, or waits for something else."""
        if self.future is not None or self._slices._active is self:
            self._slices.release(self)
