"""A request that waits: answered as soon as there is enough to say, and no later than its client wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.broker.broker import Broker
    from headrace.broker.clock import Timer

Answer = list[object]


class Poll(Protocol):
    """What a request does each time that it looks."""

    def __call__(self, *, is_last: bool = False) -> Answer | None:
        """The answer, if there is one; on the last call whatever there is."""
        ...


class Source(Protocol):
    """What a request waits for."""

    def wait(self, call: Callable[[], None]) -> None:
        """Have `call` called when there may be news."""
        ...

    def stop_waiting(self, call: Callable[[], None]) -> None:
        """Call no more."""
        ...


class WaitingRequest:
    """One long poll, from its first look in vain to its answer."""

    __slots__ = ("_is_scheduled", "_loop", "_poll", "_timer", "_watched", "future")

    def __init__(self, broker: Broker, poll: Poll, max_wait_ms: int) -> None:
        self._loop = broker.loop
        self._poll = poll
        self._is_scheduled = False
        self._watched: list[tuple[Source, Callable[[], None]]] = []
        self.future: asyncio.Future[Answer] = broker.loop.create_future()
        """The answer, as soon as it is there; cancelled when the client has gone."""
        self.future.add_done_callback(self._stop)
        self._timer: Timer = broker.clock.call_later(max_wait_ms, self._expire)

    def watch(self, source: Source, call: Callable[[], None]) -> None:
        """Be told of news by `call`: `wake` where many come at once, `look` where each has its turn."""
        source.wait(call)
        self._watched.append((source, call))

    def wake(self) -> None:
        """Look soon: once a turn of the loop is enough, however many batches arrive in it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.look)

    def look(self) -> None:
        """Answer if there is enough to say."""
        self._look(is_last=False)

    def _expire(self) -> None:
        self._look(is_last=True)

    def _look(self, *, is_last: bool) -> None:
        self._is_scheduled = False
        if self.future.done():
            return
        try:
            answer = self._poll(is_last=is_last)
        except Exception as fault:  # noqa: BLE001  whoever waits decides, and here nobody would hear of it
            self.future.set_exception(fault)
            return
        if answer is not None:
            self.future.set_result(answer)
            self._stop(self.future)  # at once: whoever has an answer is not to be served again in this turn

    def _stop(self, _: asyncio.Future[Answer]) -> None:
        self._timer.cancel()
        for source, call in self._watched:
            source.stop_waiting(call)
        self._watched.clear()
