"""Delayed operations: long polls that complete when enough records are available, or at their timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.broker.broker import Broker
    from headrace.broker.clock import Timer

ResponseParts = list[object]


class Poll(Protocol):
    """Tries to complete the operation."""

    def __call__(self, *, is_last: bool = False) -> ResponseParts | None:
        """The response if it is complete; on the last call, what is available."""
        ...


class Watchable(Protocol):
    """Something that an operation waits for: a partition, a share partition."""

    def wait(self, call: Callable[[], None]) -> None:
        """Register a callback for new records."""
        ...

    def stop_waiting(self, call: Callable[[], None]) -> None:
        """Remove the callback."""
        ...


class DelayedOperation:
    """One long poll: the counterpart of Apache Kafka's `DelayedOperation`."""

    __slots__ = ("_is_scheduled", "_loop", "_poll", "_timer", "_watched", "future")

    def __init__(self, broker: Broker, poll: Poll, max_wait_ms: int) -> None:
        self._loop = broker.loop
        self._poll = poll
        self._is_scheduled = False
        self._watched: list[tuple[Watchable, Callable[[], None]]] = []
        self.future: asyncio.Future[ResponseParts] = broker.loop.create_future()
        """The response; cancelled when the client disconnects."""
        self.future.add_done_callback(self._stop)
        self._timer: Timer = broker.clock.call_later(max_wait_ms, self._expire)

    def watch(self, source: Watchable, call: Callable[[], None]) -> None:
        """Register `call` with a source: `try_soon` if many events arrive at once, else `try_complete`."""
        source.wait(call)
        self._watched.append((source, call))

    def try_soon(self) -> None:
        """Try to complete in the next iteration of the loop, once for all batches that arrive in this one."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.try_complete)

    def try_complete(self) -> None:
        """Complete if enough records are available."""
        self._try(is_last=False)

    def _expire(self) -> None:
        self._try(is_last=True)

    def _try(self, *, is_last: bool) -> None:
        self._is_scheduled = False
        if self.future.done():
            return
        try:
            response = self._poll(is_last=is_last)
        except Exception as fault:  # noqa: BLE001  the connection logs it
            self.future.set_exception(fault)
            return
        if response is not None:
            self.future.set_result(response)
            self._stop(self.future)  # at once, so that it gets no more records in this iteration

    def _stop(self, _: asyncio.Future[ResponseParts]) -> None:
        self._timer.cancel()
        for source, call in self._watched:
            source.stop_waiting(call)
        self._watched.clear()
