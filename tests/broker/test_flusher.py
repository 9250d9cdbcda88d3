"""flush=always: no acknowledgment before the sync that covers it, and one sync for all who wait."""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.config import Flush
from headrace.broker.flusher import Flusher
from headrace.broker.topics import Partition
from headrace.storage.config import TopicConfig
from headrace.storage.errors import DiskError
from headrace.storage.folder import DataFolder
from tests.broker.wire_client import batch_of

NOW_MS = 1_700_000_000_000


class HeldExecutor(Executor):
    """An executor that runs a job when the test says so."""

    def __init__(self) -> None:
        self._held: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.jobs = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._held.append((future, lambda: fn(*args, **kwargs)))
        self.jobs += 1
        return future

    def run_next(self, *, fault: Exception | None = None) -> None:
        """Do the oldest job, or let it fail."""
        future, job = self._held.pop(0)
        if fault is not None:
            future.set_exception(fault)
        else:
            future.set_result(job())


class Bench:
    """A flusher with the partitions of one topic, whose disk waits for the test."""

    def __init__(self, folder: Path, policy: Flush = Flush.ALWAYS) -> None:
        self.disk = HeldExecutor()
        self.faults: list[Exception] = []
        self.flusher = Flusher(policy, self.disk, asyncio.get_running_loop(), self.faults.append)
        self.folder = DataFolder(folder, waits_for_sync=policy is Flush.ALWAYS)

    def open(self, index: int = 0) -> Partition:
        log = self.folder.open("orders", index, TopicConfig.parse({}), NOW_MS)
        return Partition("orders", index, log)

    def append(self, partition: Partition) -> "asyncio.Task[None]":
        """Append a batch; the task is done when it may be acknowledged."""
        partition.log.append(memoryview(bytearray(batch_of(b"tea"))), NOW_MS)
        self.flusher.appended(partition)
        return asyncio.get_running_loop().create_task(self.wait())

    async def wait(self) -> None:
        await self.flusher.durable()

    async def settle(self) -> None:
        """Let everything happen that can happen without the disk."""
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_an_append_is_acknowledged_only_after_its_sync(bench: Bench) -> None:
    partition = bench.open()
    waiting = bench.append(partition)
    await bench.settle()
    assert not waiting.done()
    assert partition.log.high_watermark == 0
    bench.disk.run_next()
    await waiting
    assert partition.log.high_watermark == 1


async def test_an_append_during_a_sync_waits_for_the_next_one(bench: Bench) -> None:
    partition = bench.open()
    first = bench.append(partition)
    await bench.settle()
    second = bench.append(partition)
    bench.disk.run_next()
    await first
    await bench.settle()
    assert not second.done()
    bench.disk.run_next()
    await second


async def test_all_that_arrive_during_one_sync_share_the_next(bench: Bench) -> None:
    partitions = [bench.open(index) for index in range(3)]
    first = bench.append(partitions[0])
    await bench.settle()
    crowd = [bench.append(partition) for partition in partitions for _ in range(20)]
    await bench.settle()
    bench.disk.run_next()
    await bench.settle()
    bench.disk.run_next()
    await asyncio.gather(first, *crowd)
    assert bench.disk.jobs == 2


async def test_an_append_needs_one_sync_although_its_writer_asks_later(bench: Bench) -> None:
    partition = bench.open()
    partition.log.append(memoryview(bytearray(batch_of(b"tea"))), NOW_MS)
    bench.flusher.appended(partition)
    await bench.settle()
    waiting = asyncio.get_running_loop().create_task(bench.wait())
    await bench.settle()
    bench.disk.run_next()
    await waiting
    assert bench.disk.jobs == 1


async def test_nothing_to_sync_is_durable_at_once(bench: Bench) -> None:
    await bench.flusher.durable()
    assert bench.disk.jobs == 0


async def test_readers_see_a_record_that_nobody_waits_for_once_it_is_synced(bench: Bench) -> None:
    partition = bench.open()
    partition.log.append(memoryview(bytearray(batch_of(b"tea"))), NOW_MS)
    bench.flusher.appended(partition)
    await bench.settle()
    bench.disk.run_next()
    await bench.settle()
    assert partition.log.high_watermark == 1


async def test_a_failed_sync_is_said_to_all_who_wait_and_stops_the_broker(bench: Bench) -> None:
    partition = bench.open()
    waiting = [bench.append(partition), bench.append(partition)]
    await bench.settle()
    bench.disk.run_next(fault=OSError(errno.EIO, "Input/output error"))
    for task in waiting:
        with pytest.raises(DiskError, match="syncing to disk failed"):
            await task
    assert [type(fault) for fault in bench.faults] == [OSError]


async def test_nothing_is_acknowledged_after_a_failed_sync(bench: Bench) -> None:
    partition = bench.open()
    before = bench.append(partition)
    await bench.settle()
    during = bench.append(partition)
    await bench.settle()
    bench.disk.run_next(fault=OSError(errno.EIO, "Input/output error"))
    await bench.settle()
    for task in (before, during, bench.append(partition)):
        with pytest.raises(DiskError):
            await task
    assert (bench.disk.jobs, partition.log.high_watermark) == (1, 0)


async def test_a_failed_sync_is_said_although_one_who_waited_has_gone(bench: Bench) -> None:
    partition = bench.open()
    gone, waiting = bench.append(partition), bench.append(partition)
    await bench.settle()
    gone.cancel()
    await bench.settle()
    bench.disk.run_next(fault=OSError(errno.EIO, "Input/output error"))
    with pytest.raises(DiskError):
        await waiting
    assert len(bench.faults) == 1


async def test_a_topic_that_is_deleted_during_its_sync_stops_nothing(bench: Bench) -> None:
    partition, other = bench.open(), bench.open(1)
    waiting = [bench.append(partition), bench.append(other)]
    await bench.settle()
    bench.folder.delete("orders", 0)
    bench.disk.run_next()
    await asyncio.gather(*waiting)
    assert not bench.faults
    assert other.log.high_watermark == 1


async def test_flush_os_never_waits(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Flush.OS)
    await bench.append(bench.open())
    assert bench.disk.jobs == 0


async def test_flush_interval_syncs_what_was_appended_when_it_is_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Flush.INTERVAL)
    bench.flusher.sync_soon()
    await bench.append(bench.open())
    await bench.settle()
    assert bench.disk.jobs == 0
    bench.flusher.sync_soon()
    await bench.settle()
    assert bench.disk.jobs == 1
    bench.disk.run_next()
    await bench.settle()
