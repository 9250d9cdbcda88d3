"""Keeps the event loop responsive: cooperative scheduling of long requests, and short garbage collections.

A request pauses after a time slice, and continues in a later iteration of the event loop. Only one long
request runs at a time, for one time slice per iteration, so that the latency of other requests does not
depend on the number of long ones. The next one runs when the first is complete, or waits for the disk or
another client.

A full garbage collection traverses every tracked object, about 25 for each partition: 95 ms with 15,000
partitions, during which no client is served. Objects that survive a full collection in large numbers are
long-lived state of topics and groups. They are frozen, so that later collections skip them; reference
counting still frees them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.protocol.wire import Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Iterable


T = TypeVar("T")

SLICE_SECONDS: Final = 0.004
"""How long a request runs before it pauses."""

FULL_COLLECTION: Final = 2
"""The generation of a full collection."""
MANY_OBJECTS: Final = 10_000
"""More survivors of a full collection than this are frozen; traversing them takes about a millisecond.

Fewer are not frozen: a reference cycle of frozen objects is never freed, and requests in flight may have one.
"""
THRESHOLDS: Final = (700, 10, 3)
"""Python's defaults, except for the last: more frequent full collections, each with less to traverse."""


class TimeSliceFuture(asyncio.Future[None]):
    """Awaited by a long request while it pauses; later requests of the same connection wait as well."""

    time_slice: TimeSlice


class RequestScheduler:
    """Runs the long requests of a broker one after the other, in the order in which they first paused."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._active: TimeSlice | None = None
        self._waiting: deque[TimeSlice] = deque()

    def time_slice(self) -> TimeSlice:
        """The time slice of a request that starts now."""
        return TimeSlice(self)

    def wait(self, time_slice: TimeSlice) -> TimeSliceFuture:
        """A future that completes when the request may continue."""
        time_slice.future = TimeSliceFuture(loop=self._loop)
        time_slice.future.time_slice = time_slice
        if self._active is None:
            self._active = time_slice
        if self._active is time_slice:
            self._loop.call_soon(_continue, time_slice)
        else:
            self._waiting.append(time_slice)
        return time_slice.future

    def release(self, time_slice: TimeSlice) -> None:
        """Run the next long request."""
        if self._active is time_slice:
            self._active = self._waiting.popleft() if self._waiting else None
            if self._active is not None:
                self._loop.call_soon(_continue, self._active)
        elif time_slice in self._waiting:
            self._waiting.remove(time_slice)


def _continue(time_slice: TimeSlice) -> None:
    if time_slice.future is not None and not time_slice.future.done():
        time_slice.future.set_result(None)


class TimeSlice:
    """The current time slice of one request."""

    __slots__ = ("_deadline", "_scheduler", "future")

    def __init__(self, scheduler: RequestScheduler) -> None:
        self._scheduler = scheduler
        self._deadline = time.perf_counter() + SLICE_SECONDS
        self.future: TimeSliceFuture | None = None

    @property
    def is_over(self) -> bool:
        """Whether the time slice is used up, so that the request should pause."""
        return time.perf_counter() >= self._deadline

    async def pause(self) -> None:
        """Let other connections run if the time slice is used up; then a new one starts."""
        if time.perf_counter() >= self._deadline:
            await self._scheduler.wait(self)
            self.future = None
            self._deadline = time.perf_counter() + SLICE_SECONDS

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate over items, with pauses between them."""
        for item in items:
            yield item
            if time.perf_counter() >= self._deadline:
                await self.pause()

    async def run(self, steps: Generator[object, None, T]) -> T:
        """Run a generator that yields wherever it may pause, and return its result."""
        work = Steps(steps)
        for _ in work:
            if time.perf_counter() >= self._deadline:
                await self.pause()
        return work.result

    def release(self) -> None:
        """Run the next long request: this one is complete, or waits for something else."""
        if self.future is not None or self._scheduler._active is self:
            self._scheduler.release(self)


def freeze_growth() -> None:
    """Freeze all objects now, and new ones after each full collection.

    The longest collection then takes 6 ms with 15,000 partitions.
    """
    gc.set_threshold(*THRESHOLDS)
    gc.collect()
    gc.freeze()
    gc.callbacks.append(freeze_survivors)


def freeze_survivors(phase: str, info: dict[str, int]) -> None:
    """Freeze the survivors of a full collection if there are many."""
    if (
        phase == "stop"
        and info["generation"] == FULL_COLLECTION
        and len(gc.get_objects(FULL_COLLECTION)) > MANY_OBJECTS
    ):
        gc.freeze()
