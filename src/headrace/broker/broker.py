"""The broker: storage, topics, coordinators and the server.

Start: lock the folder, open the topics, replay groups and transactions, then listen. Stop: take no more
requests, let those under way end, and leave a folder that the next start need not scan.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from headrace.broker.apis import SERVED
from headrace.broker.clock import LoopClock
from headrace.broker.config import BrokerConfig, Flush
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.flusher import Flusher
from headrace.broker.groups import GroupCoordinator
from headrace.broker.key_validation import KeyValidator
from headrace.broker.maintenance import Maintenance
from headrace.broker.offsets import Offsets
from headrace.broker.overflow.manager import OverflowManager
from headrace.broker.scheduling import RequestScheduler
from headrace.broker.server import Server, listen, log_file_limit
from headrace.broker.shares import ShareGroupCoordinator
from headrace.broker.state_log import PartitionStateLog
from headrace.broker.topics import OFFSETS, SHARES, TOPICS, TRANSACTIONS, Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.transactions.partitions import LogTransactionPartitions
from headrace.protocol.errors import CorruptBatch
from headrace.storage.folder import DataFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.scheduling import TimeSlice
    from headrace.storage.time_search import Search, TimedOffset

T = TypeVar("T")


class Broker:
    """A single node that speaks the Kafka protocol; `await Broker.start(config)` gives a running one."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.clock = LoopClock(loop)
        self.scheduler = RequestScheduler(loop)
        self._search_lock = asyncio.Lock()
        """Held by a search by time while a batch is opened for it."""
        self.served = SERVED
        self.node_id = config.node_id
        self.port = config.port
        self.host = config.advertised_host or config.host
        self.failed: asyncio.Future[None] = loop.create_future()
        """Done with the reason when the broker can no longer keep its promises."""
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-disk")
        # One thread: work on records holds Python's lock, and a second one would only take the loop's turns.
        self._opener = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-records")
        self.key_validator = KeyValidator(self._opener)
        self.flusher = Flusher(config.flush, self._executor, loop, self._fail)
        self.folder = DataFolder(
            config.data,
            background=self._executor.submit,
            waits_for_sync=config.flush is Flush.ALWAYS,
            memory_bytes=config.memory_topics_bytes,
            open_files=log_file_limit(),
        )
        self.cluster_id = self.folder.cluster_id
        self.sessions = FetchSessions()
        self.topics = Topics(self.folder, self.clock, config.max_partitions)
        try:
            self._open_state()
        except BaseException:
            self._executor.shutdown()
            self._opener.shutdown()
            self.folder.abandon()
            raise
        self.maintenance = Maintenance(self)
        self.is_stopping = False
        """Whether long polls are to be answered with what there is."""
        self._server: Server | None = None
        self._flush_timer: asyncio.TimerHandle | None = None

    def _open_state(self) -> None:
        topics, offsets, transactions, shares = (
            PartitionStateLog(self.topics.open_internal(name), self.flusher, self.clock)
            for name in (TOPICS, OFFSETS, TRANSACTIONS, SHARES)
        )
        self.topics.load(topics)
        settings = self.config.groups
        self.offsets = Offsets(offsets, self.clock, settings)
        self.groups = GroupCoordinator(offsets, self.offsets, self.clock, settings)
        partitions = LogTransactionPartitions(self.topics, self.offsets, self.flusher, self.clock)
        self.transactions = TransactionCoordinator(
            transactions, self.clock, partitions, self.config.transactions
        )
        self.shares = ShareGroupCoordinator(
            shares,
            self.topics,
            self.flusher,
            self.clock,
            self.config.shares,
            self._opener,
            run_search=self.run_search,
        )
        self.groups.load()
        self.transactions.load()
        self.shares.load()
        self.overflow = OverflowManager(self.topics, self.offsets, self.shares, self.clock)

    @classmethod
    async def start(cls, config: BrokerConfig) -> Broker:
        """A broker that accepts connections; `broker.port` is the port that it got."""
        listener = listen(config.host, config.port)
        try:
            broker = cls(config, asyncio.get_running_loop())
        except BaseException:
            listener.close()
            raise
        broker.port = listener.getsockname()[1]
        await broker.transactions.start()
        broker.shares.start()
        broker.maintenance.start()
        broker._server = Server(broker, listener)
        if config.flush is Flush.INTERVAL:
            broker._flush_regularly()
        return broker

    def _flush_regularly(self) -> None:
        self.flusher.sync_soon()
        delay = self.config.flush_interval_ms / 1000
        self._flush_timer = self.loop.call_later(delay, self._flush_regularly)

    def _fail(self, fault: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(fault)

    async def in_background(self, job: Callable[[], T]) -> T:
        """Run a job that waits for the disk or takes long in a thread, and return its result."""
        return await self.loop.run_in_executor(self._executor, job)

    async def run_search(self, search: Search, time_slice: TimeSlice | None = None) -> TimedOffset | None:
        """The result of a search by time; the loop serves others between its steps, in the turn of a request.

        Only one search has a batch open at a time: each may take as much memory as a batch may hold.
        """
        try:
            job = next(search)
            while True:
                if job is None:
                    await (asyncio.sleep(0) if time_slice is None else time_slice.pause())
                    job = search.send(None)
                    continue
                if time_slice is not None:
                    time_slice.release()  # other long requests work while a thread decompresses
                async with self._search_lock:
                    try:
                        opened = await self.in_background(job)
                    except CorruptBatch as fault:
                        job = search.throw(fault)
                    else:
                        job = search.send(opened)
        except StopIteration as end:
            found: TimedOffset | None = end.value
            return found

    async def save_checkpoint(self) -> None:
        """Return when start offsets and recovery points are safe."""
        await self.in_background(self.folder.checkpoint)

    async def stop(self) -> None:
        """Stop cleanly: nothing is lost, and the next start needs no scan."""
        self.is_stopping = True
        self.topics.wake_readers()
        self.overflow.drain()
        self.groups.drain()
        self.shares.complete_waiting()
        if self._server is not None:
            await self._server.close()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self.maintenance.close()
        self.groups.close()
        self.shares.close()
        await self.transactions.close()
        await self.flusher.durable()
        self._opener.shutdown(wait=True)
        self._executor.shutdown(wait=True)
        self.folder.close()
