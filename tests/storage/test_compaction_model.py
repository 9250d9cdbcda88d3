"""Compaction held against a plain list of what was written, in any order of writes, rolls and crashes."""

import shutil
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.protocol.compression import CODECS
from headrace.protocol.records import Record
from headrace.storage.compaction import recover_swaps
from headrace.storage.compaction.cleaner import compact
from headrace.storage.compaction.hash_offset_map import HashOffsetMap
from headrace.storage.compaction.offset_map import DictOffsetMap
from headrace.storage.compaction.plan import recovery_steps, swap_steps
from headrace.storage.index import OffsetIndex
from tests.storage.compacted_log import DELETE_RETENTION_MS, CompactedLog

MEMORY = Path("/dev/shm")
NEVER = None
UNSURE = -1

keys = st.sampled_from([b"a", b"b", b"c", b"", None])
values = st.sampled_from([b"1", b"2", b"x" * 40, None])
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=3)
producers = st.sampled_from([7, 8])
codecs = st.sampled_from(sorted(CODECS))
waits = st.sampled_from([0, 1, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS, 5 * DELETE_RETENTION_MS])
segment_sizes = st.sampled_from([1, 400, 2**30])


@dataclass
class Written:
    """A record as it was written, the outcome of its transaction, and the time of its first compaction."""

    record: Record
    committed: bool | None
    cleaned_ms: int | None = NEVER


class Compaction(RuleBasedStateMachine):
    """Writes to a log and to a list; the log may forget what is not the latest, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        # Syncing to a disk would take nine tenths of the time, and shows nothing here.
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.log = CompactedLog(self.folder)
        self.written: dict[int, Written] = {}
        self.pending: dict[int, list[int]] = {}
        self.compacted = False
        self.compacted_ms = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(table=st.booleans())
    def choose_keys(self, table):
        self.new_keys = (lambda limit: HashOffsetMap(24 * limit, 10**6)) if table else DictOffsetMap

    @rule(pairs=pairs, codec=codecs, producer=st.none() | producers)
    def append(self, pairs, codec, producer):
        first = self.log.end
        self.log.append(*pairs, codec=codec, producer=-1 if producer is None else producer)
        if producer in self.log.open:
            self.pending[producer] += range(first, self.log.end)
        for record in self.log.batches()[-1].records:
            self.written[record.offset] = Written(record, None if producer in self.log.open else True)

    @rule(producer=producers, inside=pairs, between=pairs, commit=st.none() | st.booleans())
    def transact(self, producer, inside, between, commit):
        """Begin or continue a transaction, while others write; end it, or leave it open."""
        if producer not in self.log.open:
            self.log.begin(producer)
            self.pending[producer] = []
        self.append(inside, 0, producer)
        self.append(between, 0, None)
        if commit is not None:
            self.log.finish(producer, commit=commit)
            for offset in self.pending.pop(producer):
                self.written[offset].committed = commit

    @rule()
    def roll(self):
        self.log.roll()

    @rule(producer=producers)
    def forget(self, producer):
        if producer not in self.log.open:
            self.log.last_batches.pop(producer, None)

    @rule(limit=st.sampled_from([3, 1000]), segment_bytes=segment_sizes, wait_ms=waits, roll=st.booleans())
    def compact(self, limit, segment_bytes, wait_ms, roll):
        self.log.now_ms += wait_ms
        if roll:
            self.log.roll()
        self.log.compact(self.new_keys(limit), segment_bytes=segment_bytes)
        for offset, written in self.written.items():
            if offset < self.log.first_dirty and written.cleaned_ms is NEVER:
                written.cleaned_ms = self.log.now_ms
        self.compacted, self.compacted_ms = True, self.log.now_ms

    @rule(swap=st.integers(0, 40), recovery=st.integers(0, 40), segment_bytes=segment_sizes)
    def compact_and_crash(self, swap, recovery, segment_bytes):
        """The broker dies in a swap and again while it recovers; how far the log is clean was not noted."""
        self.log.roll()
        result = compact(self.log.request(segment_bytes=segment_bytes), self.new_keys(1000))
        steps = (step for group in result.groups for step in swap_steps(self.folder, group))
        for _ in islice(steps, swap):
            pass
        for _ in islice(recovery_steps(self.folder), recovery):
            pass
        recover_swaps(self.folder)
        for offset, written in self.written.items():
            # Each group is swapped separately, so any part of the log may have been cleaned now.
            if offset < result.first_dirty and written.cleaned_ms is NEVER:
                written.cleaned_ms = UNSURE
        self.compacted = True

    def _committed(self, end):
        return [each.record for each in self.written.values() if each.committed and each.record.offset < end]

    @invariant()
    def compaction_keeps_its_promises(self):
        if self.compacted:
            self.compacted = False
            records = self.log.records()
            self.check_that_readers_see_the_latest_of_each_key(records)
            self.check_that_what_is_left_is_as_it_was_written(records)
            self.check_that_the_clean_part_has_one_record_of_each_key(records)
            self.check_that_nothing_else_is_missing(records)
            self.check_tombstones(records)
            self.check_batches()
            self.check_files()

    def check_that_readers_see_the_latest_of_each_key(self, records):
        expected = {record.key: record.value for record in self._committed(self.log.stable_end)}
        found = {record.key: record.value for record in records}
        assert _without_tombstones(found) == _without_tombstones(expected)

    def check_that_what_is_left_is_as_it_was_written(self, records):
        assert records == [self.written[record.offset].record for record in records]
        assert [record.offset for record in records] == sorted({record.offset for record in records})

    def check_that_the_clean_part_has_one_record_of_each_key(self, records):
        latest = {record.key: record.offset for record in self._committed(self.log.first_dirty)}
        for record in records:
            if record.offset < self.log.first_dirty:
                assert record.key is not None
                assert latest[record.key] == record.offset

    def check_that_nothing_else_is_missing(self, records):
        held = {record.offset for record in records}
        for record in self._committed(self.log.stable_end):
            assert record.offset in held or self.written[record.offset].cleaned_ms is not NEVER
        stored = {record.offset for batch in self.log.batches() for record in batch.records}
        assert stored >= {offset for offsets in self.pending.values() for offset in offsets}

    def check_tombstones(self, records):
        """A tombstone that is the latest of its key stays for its time after it was first cleaned."""
        held = {record.offset for record in records}
        latest = {record.key: record for record in self._committed(self.log.first_dirty)}
        newer = {record.key for record in self._committed(2**63) if record.offset >= self.log.first_dirty}
        for key, record in latest.items():
            cleaned_ms = self.written[record.offset].cleaned_ms
            if key is not None and key not in newer and record.value is None and cleaned_ms != UNSURE:
                assert (record.offset in held) == (self.compacted_ms < cleaned_ms + DELETE_RETENTION_MS)

    def check_batches(self):
        batches = self.log.batches()
        ends = {batch.header.last_offset for batch in batches}
        assert ends >= set(self.log.last_batches.values())
        for batch in batches:
            if not batch.header.is_control and batch.header.last_offset < self.log.first_dirty:
                assert all(self.written[record.offset].committed for record in batch.records)

    def check_files(self):
        assert not [path for path in self.folder.iterdir() if path.suffix in (".cleaned", ".swap")]
        for base in self.log.bases:
            index = self.folder / f"{base:020d}.index"
            if index.exists():
                positions = OffsetIndex.load(base, index.read_bytes()).positions
                assert all(0 < position < index.with_suffix(".log").stat().st_size for position in positions)


def _without_tombstones(latest):
    return {key: value for key, value in latest.items() if key is not None and value is not None}


TestCompaction = Compaction.TestCase
TestCompaction.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
