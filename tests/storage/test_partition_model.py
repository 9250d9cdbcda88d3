"""A partition under everything that can happen to it, against a plain list of batches.

Batches of all kinds, rolls, fetches, transactions, retention, DeleteRecords, compaction, clean stops, crashes
of the process (nothing may be lost), and power failures that tear or spoil what was not synced, with the
smaller files missing, short or full of garbage.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headrace.protocol.records import NewRecord, Record
from headrace.storage.compaction.cleaner import compact
from headrace.storage.compaction.plan import plan_compaction, swap_steps
from headrace.storage.config import TopicConfig
from headrace.storage.folder import DataFolder
from headrace.storage.partition import apply_retention
from headrace.storage.producers import OutOfOrderSequence, StaleProducerEpoch
from tests.storage.batches import NOW, Writer, batch, batch_of, find_time, read_records
from tests.storage.partition_model import ModelBatch, PartitionModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.storage.partition import PartitionLog

HOUR = 3_600_000
MEMORY = Path("/dev/shm")
TRANSACTIONAL_IDS = (1, 2)
IDEMPOTENT_ID = 3
NO_PRODUCER = -1
END_OF_TRANSACTION = 0

Contents = list[tuple[bytes, bytes | None]]

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
values = st.one_of(st.none(), st.integers(0, 300).map(lambda size: b"v" * size))
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)
codecs = st.sampled_from([0, 0, 0, 1, 2, 3, 4])
writers = st.sampled_from([NO_PRODUCER, *TRANSACTIONAL_IDS, IDEMPOTENT_ID, END_OF_TRANSACTION])
fractions = st.floats(0, 1)


class PartitionMachine(RuleBasedStateMachine):
    """One partition in a data folder, and its model."""

    def __init__(self) -> None:
        super().__init__()
        # In memory where there is such a folder: the power fails in the model only, and syncs cost nothing.
        self.path = Path(tempfile.mkdtemp(prefix="headrace-model-", dir=MEMORY if MEMORY.is_dir() else None))
        self.model = PartitionModel()
        self.now_ms = NOW
        self.jobs: list[Callable[[], None]] = []
        self.folder: DataFolder | None = None
        self.log: PartitionLog = None  # type: ignore[assignment]  # opened by the first rule
        self.serial = 0

    def teardown(self) -> None:
        if self.folder is not None:
            self.folder.abandon()
        shutil.rmtree(self.path)

    @initialize(
        policy=st.sampled_from([{"delete"}, {"compact"}, {"compact", "delete"}]),
        interval=st.sampled_from([0, 200, 4096]),
        waits_for_sync=st.booleans(),
        defers=st.booleans(),
    )
    def begin(self, policy: set[str], interval: int, waits_for_sync: bool, defers: bool) -> None:
        self.config = TopicConfig(
            cleanup_policy=frozenset(policy),
            segment_bytes=1024,
            index_interval_bytes=interval,
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=HOUR,
            retention_ms=-1,
        )
        self.waits_for_sync = waits_for_sync
        self.defers = defers
        self.open()

    def open(self) -> None:
        self.jobs = []
        background = self.jobs.append if self.defers else (lambda job: job())
        self.folder = DataFolder(self.path, background=background, waits_for_sync=self.waits_for_sync)
        self.log = self.folder.open("topic", 0, self.config, self.now_ms)

    # Writing

    def _records(self, contents: Contents, codec: int, writer: Writer | None) -> memoryview:
        self.now_ms += 1
        self.serial += 1
        made = [(key, value and b"%d:%s" % (self.serial, value)) for key, value in contents]
        # Times go back and forth, as those of several producers do.
        times = [self.now_ms + (7 * n + self.serial * 13) % 50 for n in range(len(made))]
        sending = [NewRecord(key, value, time) for time, (key, value) in zip(times, made, strict=True)]
        self.sending = [Record(n, each.timestamp, each.key, each.value, ()) for n, each in enumerate(sending)]
        return batch_of(sending, codec=codec, writer=writer)

    def _written(self, base_offset: int, writer: Writer | None = None) -> None:
        """Take what was sent into the model."""
        records = [record._replace(offset=base_offset + record.offset) for record in self.sending]
        added = ModelBatch(base_offset=base_offset, count=len(records), records=records)
        if writer is not None:
            added.producer_id, added.sequence, added.epoch = writer.producer_id, writer.sequence, writer.epoch
            added.transactional = writer.transactional
        self.model.add(added)

    @rule(contents=pairs, codec=codecs)
    def append(self, contents: Contents, codec: int) -> None:
        sent = self._records(contents, codec, None)
        self._written(self.log.append(sent, self.now_ms).base_offset)

    @rule(contents=pairs, codec=codecs, producer_id=st.sampled_from([*TRANSACTIONAL_IDS, IDEMPOTENT_ID]))
    def append_of_producer(self, contents: Contents, codec: int, producer_id: int) -> None:
        known = self.model.producers().get(producer_id)
        writer = Writer(
            producer_id,
            0 if known is None else known.next_sequence,
            0 if known is None else known.epoch,
            transactional=producer_id in TRANSACTIONAL_IDS,
        )
        stored = self.log.append(self._records(contents, codec, writer), self.now_ms)
        assert not stored.is_duplicate
        self._written(stored.base_offset, writer)

    @rule(committed=st.booleans(), bump=st.booleans(), producer_id=st.sampled_from(TRANSACTIONAL_IDS))
    def end_transaction(self, committed: bool, bump: bool, producer_id: int) -> None:
        known = self.model.producers().get(producer_id)
        if known is None or known.first_open is None:
            return
        epoch = known.epoch + bump
        offset = self.log.append_marker(producer_id, epoch, committed=committed, now_ms=self.now_ms)
        self.model.add(
            ModelBatch(base_offset=offset, count=1, producer_id=producer_id, epoch=epoch, committed=committed)
        )

    @rule(steps=st.lists(st.tuples(writers, pairs, codecs, st.booleans()), min_size=3, max_size=12))
    def write_a_lot(self, steps: list[tuple[int, Contents, int, bool]]) -> None:
        for producer_id, contents, codec, flag in steps:
            if producer_id == END_OF_TRANSACTION:
                self.end_transaction(committed=flag, bump=len(contents) > 1, producer_id=1 + codec % 2)
            elif producer_id == NO_PRODUCER:
                self.append(contents, codec)
            else:
                self.append_of_producer(contents, codec, producer_id)

    @rule(data=st.data())
    def repeat_a_batch(self, data: st.DataObject) -> None:
        candidates = [
            (id_, state, sent) for id_, state in self.model.producers().items() for sent in state.sent
        ]
        if not candidates:
            return
        producer_id, state, sent = data.draw(st.sampled_from(candidates))
        writer = Writer(producer_id, sent.sequence, state.epoch, producer_id in TRANSACTIONAL_IDS)
        again = self.log.append(batch(*[b"again"] * sent.count, writer=writer), self.now_ms)
        assert (again.base_offset, again.is_duplicate) == (sent.base_offset, True)

    @rule(producer_id=st.sampled_from([*TRANSACTIONAL_IDS, IDEMPOTENT_ID]))
    def break_the_rules_of_producers(self, producer_id: int) -> None:
        known = self.model.producers().get(producer_id)
        if known is None:
            return
        transactional = producer_id in TRANSACTIONAL_IDS
        gap = Writer(producer_id, known.next_sequence + 1, known.epoch, transactional)
        with pytest.raises(OutOfOrderSequence):
            self.log.append(batch(b"gap", writer=gap), self.now_ms)
        stale = Writer(producer_id, 0, known.epoch - 1, transactional)
        with pytest.raises(StaleProducerEpoch):
            self.log.append(batch(b"stale", writer=stale), self.now_ms)

    # Upkeep

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def run_jobs(self) -> None:
        for job in self.jobs:
            job()
        self.jobs.clear()

    @rule()
    def sync(self) -> None:
        reached = self.log.sync()
        self.log.synced(reached)
        self.model.durable_end = max(self.model.durable_end, reached)

    @rule()
    def checkpoint(self) -> None:
        assert self.folder is not None
        self.folder.checkpoint()

    @rule(fraction=fractions)
    def delete_records(self, fraction: float) -> None:
        self._save_snapshots()
        start, end = self.log.start_offset, self.log.high_watermark
        self.model.start = start + int(fraction * (end - start))
        self.log.move_start(self.model.start)
        self.checkpoint()

    @rule(age_ms=st.integers(0, 20))
    def retain_by_time(self, age_ms: int) -> None:
        self._save_snapshots()
        self.log.config = dataclasses.replace(self.config, retention_ms=age_ms)
        apply_retention(self.log, self.now_ms)
        self.log.config = self.config
        gone = self.model.records(self.log.start_offset)
        assert all(record.timestamp < self.now_ms - age_ms for record in gone)
        self.model.start = self.log.start_offset
        self.checkpoint()
        # What no reader may see yet stays; and compaction keeps the times of records that it removed.
        is_certain = self.log.high_watermark == self.log.end_offset and not self.model.was_compacted
        if "delete" in self.config.cleanup_policy and is_certain and self.log.size:
            first_end = [*(s.base_offset for s in self.log.segments[1:]), self.log.end_offset][0]
            newest = max(r.timestamp for r in self._all_of(self.log.segments[0].base_offset, first_end))
            assert newest >= self.now_ms - age_ms

    def _save_snapshots(self) -> None:
        """Close what was rolled: a crash before that forgets producers whose every batch was deleted."""
        self.run_jobs()

    def _all_of(self, first: int, end: int) -> list[Record]:
        """Records and markers in a range, whatever became of the start of the log."""
        marker = Record(0, self.now_ms, None, None, ())
        found = []
        for each in self.model.batches:
            if first <= each.base_offset < end:
                found += each.records or [marker]
        return found

    @rule(limit=st.integers(0, 8000))
    def retain_by_size(self, limit: int) -> None:
        self._save_snapshots()
        self.log.trim()
        before = self.log.size
        self.log.config = dataclasses.replace(self.config, retention_bytes=limit)
        apply_retention(self.log, self.now_ms)
        self.log.config = self.config
        self.model.start = self.log.start_offset
        self.checkpoint()
        assert self.log.size >= min(limit, before)
        if "delete" in self.config.cleanup_policy and not self.waits_for_sync:
            assert len(self.log.segments) == 1 or self.log.size - self.log.segments[0].size < limit

    @rule(closes=st.booleans(), steps=st.none() | st.integers(0, 25), later_ms=st.sampled_from([0, 2 * HOUR]))
    def compact(self, closes: bool, steps: int | None, later_ms: int) -> None:
        """Compact as the broker does; with `steps`, it is killed after this many steps of the swap."""
        if closes:
            for producer_id in TRANSACTIONAL_IDS:
                self.end_transaction(committed=later_ms == 0, bump=False, producer_id=producer_id)
            self.log.roll()
            self.run_jobs()
        request = plan_compaction(self.log, self.now_ms + later_ms, None)
        if request is None:
            return
        result = compact(request)
        self.checkpoint()
        for group in result.groups:
            if steps is not None:
                for _ in islice(swap_steps(request.directory, group), steps):
                    pass
                self._crash()
                break
            for segment in self.log.segments:
                if segment.base_offset in group.replaces:
                    segment.hold()
            for _ in swap_steps(request.directory, group):
                pass
            self.log.replace_segments(group.replaces)
        self.model.compacted(request.clean_until, read_everything(self.log))
        if steps is None:
            self.log.first_dirty_offset = max(self.log.first_dirty_offset, result.first_dirty)
            assert result.first_dirty == request.clean_until
            assert self.model.is_clean(request.clean_until)

    # Reading

    @rule(fraction=fractions, max_bytes=st.integers(1, 5000), committed=st.booleans())
    def fetch(self, fraction: float, max_bytes: int, committed: bool) -> None:
        end = self.log.last_stable_offset if committed else self.log.high_watermark
        offset = self.model.start + int(fraction * (end - self.model.start))
        expected = self.model.committed_records(end) if committed else self.model.records(end)
        found = read_records(self.log, offset, committed=committed, max_bytes=max_bytes)
        assert found == [record for record in expected if record.offset >= offset]

    @rule(back_ms=st.integers(-10, 200))
    def look_for_a_time(self, back_ms: int) -> None:
        wanted = self.now_ms - back_ms
        found = find_time(self.log, wanted)
        records = self.model.records(self.log.end_offset)
        first = next((r for r in records if r.timestamp >= wanted), None)
        markers = [b.base_offset for b in self.model.batches if b.committed is not None]
        if found is None:
            assert first is None
        elif found.offset not in markers:
            assert first is not None
            assert found == (first.offset, first.timestamp)

    # Ends and new beginnings

    @rule()
    def stop_and_start(self) -> None:
        assert self.folder is not None
        self.run_jobs()
        self.folder.close()
        self.model.durable_end = self.model.end
        self.open()
        assert self.folder.was_clean

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The process is killed; the machine lives, so that nothing at all may be lost."""
        self._damage_small_files(data)
        self._crash()

    def _crash(self) -> None:
        assert self.folder is not None
        self.folder.abandon()
        self.open()

    @rule(data=st.data(), how=st.sampled_from(["cut", "spoil", "zero"]))
    def lose_power(self, data: st.DataObject, how: str) -> None:
        """The machine loses power: of what was not synced some part is torn, spoilt or all zeroes."""
        self.model.durable_end = max(self.model.durable_end, self.log.recovery_point)
        unsynced = [
            (segment.path, position, header)
            for segment in self.log.segments
            for position, header in segment.headers()
            if header.base_offset >= max(self.model.durable_end, self.model.start)
        ]
        self._damage_small_files(data)
        if unsynced:
            path, position, header = data.draw(st.sampled_from(unsynced))
            # The first 16 bytes are outside the checksum: an offset that is spoilt is not always noticed.
            ranges = {"cut": (0, header.size - 1), "spoil": (16, header.size - 1), "zero": (16, 16)}
            within = data.draw(st.just(ranges[how][0]) | st.integers(*ranges[how]))
            tear(path, position + within, how)
            self.model.lose_from(header.base_offset)
        self._crash()

    def _damage_small_files(self, data: st.DataObject) -> None:
        """Spoil files that can be made again from the log."""
        suffixes = [".index", ".timeindex"]
        if self.model.start == 0 and not self.model.was_compacted:
            suffixes += [".snapshot", ".txnindex"]
        for suffix in suffixes:
            for path in sorted(self.log.directory.glob(f"*{suffix}")):
                # Whether there is a list of aborted transactions is known from nowhere else.
                kinds = ["none", "none", "short", "garbage"] + ["missing"] * (suffix != ".txnindex")
                kinds += ["lies"] * (suffix in (".index", ".timeindex"))
                damage = data.draw(st.sampled_from(kinds))
                content = path.read_bytes()
                if damage == "missing":
                    path.unlink()
                elif damage == "short" and content:
                    path.write_bytes(content[:-1])
                elif damage == "garbage":
                    path.write_bytes(b"\x5a" * len(content))
                elif damage == "lies":
                    path.write_bytes(bytes(byte ^ (place % 4 == 3) for place, byte in enumerate(content)))

    # What must hold after every step

    @invariant()
    def offsets_are_right(self) -> None:
        log, model = self.log, self.model
        assert log.end_offset == model.end
        assert log.start_offset == model.start
        assert model.start <= log.last_stable_offset <= log.high_watermark <= log.end_offset
        assert log.last_stable_offset == model.last_stable_offset(log.high_watermark)
        if not self.waits_for_sync:
            assert log.high_watermark == log.end_offset

    @invariant()
    def every_record_is_there_once_and_in_order(self) -> None:
        log, model = self.log, self.model
        assert read_records(log) == model.records(log.high_watermark)
        assert read_records(log, committed=True) == model.committed_records(log.last_stable_offset)

    @invariant()
    def aborted_transactions_and_producers_are_known(self) -> None:
        known = self.log.aborted.between(self.model.start, self.log.end_offset)
        if not self.model.was_compacted:
            found = [(each.producer_id, each.first_offset, each.last_offset) for each in known]
            assert found == [each for each in self.model.aborted() if each.marker >= self.model.start]
        for producer_id, state in self.model.producers().items():
            assert self.log.producers.epoch_of(producer_id) == state.epoch
            assert self.log.producers.has_open(producer_id) == (state.first_open is not None)


def read_everything(log: PartitionLog) -> list[Record]:
    """Every record from the start of the log on, whether or not readers may see it yet."""
    visible = log.high_watermark
    log.high_watermark = log.end_offset
    found = read_records(log)
    log.high_watermark = visible
    return found


def tear(path: Path, position: int, how: str) -> None:
    """Cut a file at a position, change the byte there, or make all from there on zeroes."""
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[position:]
    elif how == "spoil":
        data[position] ^= 0xFF
    else:
        data[position:] = bytes(len(data) - position)
    path.write_bytes(data)


def run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        PartitionMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_partition_holds_what_a_plain_list_holds() -> None:
    run(examples=60, steps=30)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_partition_holds_what_a_plain_list_holds_for_long() -> None:
    run(examples=1_000, steps=80)
