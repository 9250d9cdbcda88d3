"""A broker in a thread of the calling process."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.broker.config import BrokerConfig


class EmbeddedBroker:
    """A broker in a thread of this process; Kafka clients of any process can connect to `bootstrap`."""

    def __init__(self, config: BrokerConfig) -> None:
        # Here and not above: every pytest run of a project that has Headrace installed loads this module.
        import uvloop

        self.config = config
        self._loop = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._bootstraps: tuple[str, ...] = ()
        self._faults: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="headrace-broker", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._faults:
            self._thread.join()
            raise self._faults[0]

    @property
    def bootstrap(self) -> str:
        """The address of the first listener: `bootstrap.servers` of clients."""
        return self.bootstraps[0]

    @property
    def bootstraps(self) -> tuple[str, ...]:
        """The addresses of all listeners, in their order."""
        return self._bootstraps

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()

    async def _serve(self) -> None:
        from headrace.broker.broker import Broker

        try:
            broker = await Broker.start(self.config)
        except BaseException as fault:  # noqa: BLE001  raised again in the thread that waits for the start
            self._faults.append(fault)
            self._started.set()
            return
        self._bootstraps = tuple(listener.address for listener, _ in broker.endpoints)
        self._started.set()
        stopped = self._loop.create_task(self._stop.wait())
        ends: list[asyncio.Future[Any]] = [stopped, broker.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        # A broker whose disk failed must not stop silently: the connections of the test end.
        if not broker.failed.done():
            await broker.stop()

    def stop(self) -> None:
        """Stop cleanly; the data is kept."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()


@contextmanager
def broker(**settings: Any) -> Iterator[EmbeddedBroker]:
    """A private broker with a temporary data folder on a free port, removed when the block ends.

    `settings` are those of `headrace.broker.config.BrokerConfig`, for example `default_partitions=3`.
    """
    from headrace.broker.config import BrokerConfig

    with tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True) as folder:
        defaults: dict[str, Any] = {"data": Path(folder), "port": 0}
        embedded = EmbeddedBroker(BrokerConfig(**(defaults | settings)))
        try:
            yield embedded
        finally:
            embedded.stop()
