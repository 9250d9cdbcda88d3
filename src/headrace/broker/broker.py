"""The broker: storage, topics, coordinators and the server.

Startup: lock the data folder, open the topics, replay groups and transactions, then listen. Shutdown: stop
reading requests, complete those in flight, and write checkpoints, so that the next start needs no recovery.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.apis import SERVED, TELEMETRY, handle_request
from headrace.broker.client_telemetry import ClientTelemetry
from headrace.broker.clock import EventLoopClock
from headrace.broker.config import BrokerConfig, Flush
from headrace.broker.control import ControlServer
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.flusher import Flusher
from headrace.broker.groups import GroupCoordinator
from headrace.broker.key_validation import KeyValidator
from headrace.broker.maintenance import Maintenance
from headrace.broker.offsets import CommittedOffsets
from headrace.broker.overflow.manager import OverflowManager
from headrace.broker.remote_log_manager import RemoteLogManager
from headrace.broker.request_metrics import RequestMetrics
from headrace.broker.scheduling import RequestScheduler
from headrace.broker.security.certificates import tls_contexts
from headrace.broker.security.manager import SecurityManager
from headrace.broker.security.sasl import ANONYMOUS
from headrace.broker.server import BoundListener, Server, listen, log_file_limit
from headrace.broker.shares import ShareGroupCoordinator
from headrace.broker.state_log import PartitionStateLog
from headrace.broker.topics import OFFSETS, SECURITY, SHARES, TOPICS, TRANSACTIONS, Topics
from headrace.broker.transactions import TransactionCoordinator
from headrace.broker.transactions.partitions import LogTransactionPartitions
from headrace.protocol.errors import CorruptBatch
from headrace.storage.folder import DataFolder
from headrace.storage.remote_cache import RemoteReadPending

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from headrace.broker.listeners import Endpoint, Listener
    from headrace.broker.scheduling import TimeSlice
    from headrace.broker.security.certificates import TlsContexts
    from headrace.storage.time_search import Search, TimedOffset

T = TypeVar("T")


class Broker:
    """A single-node broker for the Kafka protocol; `await Broker.start(config)` returns a running one."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.loop = loop
        self.clock = EventLoopClock(loop)
        self.scheduler = RequestScheduler(loop)
        self.requests = RequestMetrics(config.slow_request_ms)
        self._search_lock = asyncio.Lock()
        """Held by a search by timestamp while it has a batch open."""
        self.client_telemetry: ClientTelemetry | None = None
        """The metrics that clients push; None in a broker that does not serve metrics."""
        self.served = {
            key: versions for key, versions in SERVED.items() if config.metrics or key not in TELEMETRY
        }
        self.node_id = config.node_id
        first = config.all_listeners[0]
        self.endpoints: list[tuple[Listener, Endpoint]] = []
        """The listeners with their actual ports, and the addresses that they advertise."""
        self.host, self.port = first.endpoint(first.port)
        self.failed: asyncio.Future[None] = loop.create_future()
        """Completes with an exception when a disk error makes the broker unable to acknowledge records."""
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="headrace-disk")
        # One thread: decoding records holds the GIL, and a second thread would only slow down the event loop.
        self._record_executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headrace-records")
        self.key_validator = KeyValidator(self._record_executor)
        if config.metrics is not None:
            self.client_telemetry = ClientTelemetry(
                self.clock, self._record_executor, config.client_metrics_interval_ms
            )
        self.flusher = Flusher(config.flush, self._executor, loop, self._fail)
        self.remote_log = None if config.archive is None else RemoteLogManager(self, config.archive)
        """Copies segments to the archive, and reads them; None without an archive."""
        self.flusher.tails = None if self.remote_log is None else self.remote_log.tails
        self.folder = DataFolder(
            config.data,
            background=self._executor.submit,
            waits_for_sync=config.flush is Flush.ALWAYS,
            memory_bytes=config.memory_topics_bytes,
            open_files=log_file_limit(),
            remote_cache=None if self.remote_log is None else self.remote_log.cache,
        )
        self.cluster_id = self.folder.cluster_id
        self.sessions = FetchSessions()
        self.topics = Topics(
            self.folder, self.clock, config.max_partitions, has_archive=self.remote_log is not None
        )
        try:
            self._open_state()
        except BaseException:
            self._executor.shutdown()
            self._record_executor.shutdown()
            if self.remote_log is not None:
                self.remote_log.shutdown()
            self.folder.abandon()
            raise
        self.respond: Callable[..., Any] = handle_request
        """What responds to the requests of clients that are authenticated."""
        self.maintenance = Maintenance(self)
        self.is_stopping = False
        """Whether long polls should complete with the records that are available."""
        self.server: Server | None = None
        self._control = ControlServer(self)
        self._flush_timer: asyncio.TimerHandle | None = None

    def _open_state(self) -> None:
        topics, offsets, transactions, shares = (
            PartitionStateLog(self.topics.open_internal(name), self.flusher, self.clock)
            for name in (TOPICS, OFFSETS, TRANSACTIONS, SHARES)
        )
        self.topics.load(topics)
        security = PartitionStateLog(self.topics.open_hidden(SECURITY), self.flusher, self.clock)
        self.security = SecurityManager(
            security, self.config.security, has_authentication=self.config.has_authentication
        )
        settings = self.config.groups
        self.offsets = CommittedOffsets(offsets, self.clock, settings)
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
            self._record_executor,
            self.scheduler,
            run_search=self.run_search,
        )
        self.groups.load()
        self.transactions.load()
        self.shares.load()
        self.overflow = OverflowManager(self.topics, self.offsets, self.shares, self.clock)

    @classmethod
    async def start(cls, config: BrokerConfig) -> Broker:
        """Start a broker; returns it when it accepts connections. `port` is that of the first listener."""
        contexts = [tls_contexts(config.security, listener) for listener in config.all_listeners]
        sockets: list[socket.socket] = []
        try:
            for listener in config.all_listeners:  # one by one: those before a bad one are closed
                sockets.append(listen(listener.host, listener.port))  # noqa: PERF401
            broker = cls(config, asyncio.get_running_loop())
        except BaseException:
            for each in sockets:
                each.close()
            raise
        bound = [broker._bind(*parts) for parts in zip(config.all_listeners, sockets, contexts, strict=True)]
        broker.endpoints = [
            (replace(each.listener, port=each.socket.getsockname()[1]), each.endpoint) for each in bound
        ]
        broker.host, broker.port = bound[0].endpoint
        await broker.transactions.start()
        broker.shares.start()
        broker.maintenance.start()
        if broker.remote_log is not None:
            broker.remote_log.start()
        broker.quotas_changed()
        broker.server = Server(broker, bound)
        await broker._control.start()
        if config.flush is Flush.INTERVAL:
            broker._flush_regularly()
        return broker

    def _bind(self, listener: Listener, bound: socket.socket, tls: TlsContexts | None) -> BoundListener:
        return BoundListener(
            listener=listener,
            socket=bound,
            endpoint=listener.endpoint(bound.getsockname()[1]),
            mechanisms=self.security.mechanisms(listener) if listener.protocol.has_sasl else None,
            tls=tls,
            access=lambda host: self.security.access(ANONYMOUS, host),
        )

    def quotas_changed(self) -> None:
        """Let the quotas in the store count; without any, requests are not measured."""
        from headrace.broker.throttling import respond_within_quotas

        self.security.quotas.changed()
        self.respond = respond_within_quotas if self.security.quotas else handle_request
        if self.server is not None:
            self.server.respond_changed()

    def _flush_regularly(self) -> None:
        self.flusher.sync_soon()
        delay = self.config.flush_interval_ms / 1000
        self._flush_timer = self.loop.call_later(delay, self._flush_regularly)

    def _fail(self, fault: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(fault)

    async def in_background(self, job: Callable[[], T]) -> T:
        """Run a blocking job in a thread, and return its result."""
        return await self.loop.run_in_executor(self._executor, job)

    async def run_search(self, search: Search, time_slice: TimeSlice | None = None) -> TimedOffset | None:
        """The result of a search by timestamp, which pauses between the time slices of its request.

        Only one search at a time has a batch open: a decompressed batch may be large.
        """
        try:
            job = next(search)
            while True:
                if job is None:
                    await (asyncio.sleep(0) if time_slice is None else time_slice.pause())
                    job = search.send(None)
                    continue
                if time_slice is not None:
                    time_slice.release()  # other long requests run while a thread decompresses
                if isinstance(job, RemoteReadPending):
                    await self.downloaded(job)
                    job = search.send(None)
                    continue
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

    async def downloaded(self, pending: RemoteReadPending) -> None:
        """Return when a download from the archive has succeeded or failed; reading again shows which."""
        ended = asyncio.Event()
        pending.load(ended.set)
        await ended.wait()

    async def save_checkpoint(self) -> None:
        """Return when start offsets and recovery points are on disk."""
        await self.in_background(self.folder.checkpoint)

    async def stop(self) -> None:
        """Stop cleanly: no acknowledged record is lost, and the next start needs no recovery."""
        self.is_stopping = True
        self.topics.wake_readers()
        self.overflow.drain()
        self.groups.drain()
        self.shares.complete_waiting()
        await self._control.close()
        if self.server is not None:
            await self.server.close()
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        await self.maintenance.close()
        if self.remote_log is not None:
            await self.remote_log.close()
        self.groups.close()
        self.shares.close()
        await self.transactions.close()
        await self.flusher.durable()
        self.security.close()
        self._record_executor.shutdown(wait=True)
        self._executor.shutdown(wait=True)
        self.folder.close()
