"""Maintenance of the broker: compaction under load, retention, checkpoints, and errors."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from headrace.broker import scheduling
from headrace.broker.broker import Broker
from headrace.broker.config import BrokerConfig
from headrace.storage.checkpoint import read_checkpoint
from headrace.storage.partition import PartitionLog
from headrace.storage.producers import EXPIRATION_MS
from tests.storage.batches import Writer, batch, filler, read_records, read_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from headrace.broker.topics import Partition

HOUR = 3_600_000
NEVER_MS = 10**9
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.01"}


class FixedClock:
    """The broker's clock, moved by hand; its timers are not used here."""

    def __init__(self) -> None:
        self.time_ms = time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker that does its upkeep only when the test says so."""
    broker = await Broker.start(BrokerConfig(data=tmp_path, port=0, maintenance_interval_ms=NEVER_MS))
    broker.clock = FixedClock()  # type: ignore[assignment]  # what upkeep asks of a clock, it has
    yield broker
    await broker.stop()


def create(broker: Broker, name: str = "prices", **settings: str) -> Partition:
    configs = COMPACTED | {key.replace("_", "."): value for key, value in settings.items()}
    return broker.topics.create(name, 1, configs).partitions[0]


def update(broker: Broker, partition: Partition, count: int = 100, keys: int = 5) -> None:
    now_ms = broker.clock.now_ms()
    for number in range(count):
        value = b"%d" % number + b"." * 80
        partition.log.append(batch(value, key=b"%d" % (number % keys), time_ms=now_ms), now_ms)


async def closed(broker: Broker, partition: Partition) -> None:
    """Return when every segment that was rolled is durable."""
    await broker.in_background(partition.log.close_rolled)


async def test_a_partition_is_compacted_to_the_latest_record_of_each_key(broker):
    partition = create(broker)
    update(broker, partition)
    await closed(broker, partition)
    before = {record.key: record for record in read_records(partition.log)}
    closed_end = partition.log.active.base_offset
    await broker.maintenance.compact()
    after = read_records(partition.log)
    assert {record.key: record for record in after} == before
    assert len([record for record in after if record.offset < closed_end]) == 5
    assert partition.log.first_dirty_offset == closed_end


async def test_writing_and_reading_go_on_while_a_partition_is_compacted(broker):
    partition = create(broker)
    update(broker, partition, count=300)
    await closed(broker, partition)
    compaction = asyncio.ensure_future(broker.maintenance.compact())
    written = 300
    while not compaction.done():
        update(broker, partition, count=1)
        written += 1
        first = written // 2
        assert {record.offset for record in read_records(partition.log, first)} >= {written - 1}
        await asyncio.sleep(0)
    await compaction
    assert written > 310
    offsets = [record.offset for record in read_records(partition.log)]
    assert len([offset for offset in offsets if offset < partition.log.first_dirty_offset]) == 5
    assert offsets[-(written - 300) :] == list(range(300, written))


async def test_a_reader_in_the_middle_of_a_segment_goes_on_with_it(broker):
    partition = create(broker)
    update(broker, partition)
    await closed(broker, partition)
    held = partition.log.read(0, 2**20, partition.log.end_offset, at_least_one=True)
    assert held is not None
    before = os.pread(held.file.fd, held.size, held.position)
    await broker.maintenance.compact()
    assert os.pread(held.file.fd, held.size, held.position) == before
    assert read_records(partition.log)[0].offset > 0


async def test_what_is_replaced_lies_below_the_recovery_point_on_disk(broker, tmp_path):
    partition = create(broker)
    update(broker, partition)
    await closed(broker, partition)
    await broker.maintenance.compact()
    points = read_checkpoint(tmp_path / "recovery-point-offset-checkpoint")
    assert points["prices", 0] >= partition.log.first_dirty_offset > 0


async def test_one_partition_that_cannot_be_compacted_does_not_keep_the_others_waiting(broker, caplog):
    sick, well = create(broker, "a-sick"), create(broker, "b-well")
    for partition in (sick, well):
        update(broker, partition)
        await closed(broker, partition)
    path = sick.log.segments[0].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    await broker.maintenance.compact()
    assert len(read_records(well.log)) < 100
    assert "Compaction of a-sick-0 failed" in caplog.text


async def test_a_topic_that_is_deleted_while_it_is_compacted_is_no_fault(broker, caplog):
    partition = create(broker)
    update(broker, partition)
    await closed(broker, partition)
    compaction = asyncio.ensure_future(broker.maintenance.compact())
    await asyncio.sleep(0)
    broker.topics.delete("prices")
    await compaction
    assert "prices" not in caplog.text
    fresh = create(broker)
    assert fresh.log.end_offset == 0


async def test_records_that_are_deleted_during_a_compaction_stay_deleted(broker):
    partition = create(broker, cleanup_policy="compact,delete")
    update(broker, partition)
    await closed(broker, partition)
    compaction = asyncio.ensure_future(broker.maintenance.compact())
    await asyncio.sleep(0)
    partition.log.move_start(60)
    await compaction
    assert read_records(partition.log)[0].offset >= 60
    assert not list(partition.log.directory.glob("*.cleaned"))
    assert partition.log.segments[0].base_offset <= 60


async def test_a_stop_gives_up_a_compaction_and_the_next_start_has_everything(tmp_path):
    config = BrokerConfig(data=tmp_path, port=0, maintenance_interval_ms=1)
    broker = await Broker.start(config)
    partition = create(broker)
    update(broker, partition, count=300)
    before = {record.key: record for record in read_records(partition.log)}
    await broker.stop()
    broker = await Broker.start(config)
    topic = broker.topics.get("prices")
    assert topic is not None
    assert {record.key: record for record in read_records(topic.partitions[0].log)} == before
    await broker.stop()


async def test_retention_is_applied_and_the_new_start_saved(broker, tmp_path):
    partition = create(broker, cleanup_policy="delete", retention_ms=str(HOUR))
    update(broker, partition)
    broker.clock.time_ms += 2 * HOUR
    partition.log.append(batch(b"new", time_ms=broker.clock.now_ms()), broker.clock.now_ms())
    await broker.maintenance.clean_up()
    assert read_values(partition.log)[-1] == b"new"
    assert partition.log.start_offset > 90
    starts = read_checkpoint(tmp_path / "log-start-offset-checkpoint")
    assert starts["prices", 0] == partition.log.start_offset


async def test_a_segment_that_could_not_be_closed_is_closed_with_the_next_round(broker):
    partition = create(broker)
    obstacle = partition.log.directory / f"{0:020d}.index.tmp"
    obstacle.mkdir()
    for number in range(20):
        partition.log.append(filler(number), broker.clock.now_ms())
    await closed(broker, partition)
    assert partition.log.has_rolled
    obstacle.rmdir()
    await broker.maintenance.clean_up()
    assert not partition.log.has_rolled
    assert partition.log.recovery_point == partition.log.active.base_offset


async def test_a_producer_that_was_silent_for_a_day_is_forgotten(broker):
    partition = create(broker)
    partition.log.append(batch(b"v", writer=Writer(7)), broker.clock.now_ms())
    broker.clock.time_ms += EXPIRATION_MS - 1
    await broker.maintenance.clean_up()
    assert partition.log.producers.epoch_of(7) == 0
    broker.clock.time_ms += 1
    await broker.maintenance.clean_up()
    assert partition.log.producers.epoch_of(7) == -1


async def test_upkeep_goes_on_by_itself(tmp_path):
    broker = await Broker.start(BrokerConfig(data=tmp_path, port=0, maintenance_interval_ms=10))
    try:
        partition = create(broker)
        update(broker, partition)
        deadline = broker.loop.time() + 20
        while partition.log.first_dirty_offset == 0:
            assert broker.loop.time() < deadline, "the partition was never compacted"
            await asyncio.sleep(0.01)
        assert len(read_records(partition.log)) < 100
    finally:
        await broker.stop()


async def test_a_long_request_works_while_the_upkeep_waits_for_the_disk(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, is_released = create(broker, segment_ms="1"), threading.Event()
    monkeypatch.setattr(PartitionLog, "has_rolled", property(lambda log: log is partition.log))
    monkeypatch.setattr(PartitionLog, "close_rolled", lambda _: is_released.wait())
    monkeypatch.setattr(scheduling, "SLICE_SECONDS", 0.0)  # so that every step of long work pauses
    tidying = asyncio.create_task(broker.maintenance.clean_up())
    while not broker.scheduler._active and not tidying.done():
        await asyncio.sleep(0)
    request = broker.scheduler.time_slice()
    await asyncio.wait_for(request.pause(), 10)
    request.release()
    assert not tidying.done()
    is_released.set()
    await tidying
