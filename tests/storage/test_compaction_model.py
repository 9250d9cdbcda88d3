"""Compaction held against a plain list of what was written, in any order of writes, rolls, crashes and hours."""

import shutil
import tempfile
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.storage.compacted_log import DELETE_RETENTION_MS, CompactedLog

from headrace.protocol.compression import CODECS
from headrace.protocol.records import Record
from headrace.storage.compaction import recover_swaps
from headrace.storage.compaction.cleaner import compact
from headrace.storage.compaction.keydict import KeyDict
from headrace.storage.compaction.keytable import KeyTable
from headrace.storage.compaction.swap import recovery_steps, swap_steps
from headrace.storage.index import OffsetIndex

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"", None])
values = st.sampled_from([b"1", b"2", b"x" * 40, None])
pairs = st.lists(st.tuples(keys, values), min_size=1, max_size=4)
producers = st.sampled_from([7, 8])
codecs = st.sampled_from(sorted(CODECS))


@dataclass
class Written:
    """A record as it was written, and what became of its transaction."""

    record: Record
    committed: bool | None
    first_cleaned_ms: int | None = field(default=None)


class Compaction(RuleBasedStateMachine):
    """Writes to a log and a list; the log may forget what is not the latest, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.log = CompactedLog(self.folder)
        self.written: dict[int, Written] = {}
        self.pending: dict[int, list[int]] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(table=st.booleans())
    def choose_keys(self, table):
        self.new_keys = (lambda limit: KeyTable(24 * 4 * limit // 3, 10**6)) if table else KeyDict

    @rule(pairs=pairs, codec=codecs, producer=st.none() | producers)
    def append(self, pairs, codec, producer):
        if producer in self.log.open:
            self.pending[producer] += range(self.log.end, self.log.end + len(pairs))
        self.log.append(*pairs, codec=codec, producer=-1 if producer is None else producer)
        for record in self.log.batches()[-1].records:
            committed = None if producer in self.log.open else True
            self.written[record.offset] = Written(record, committed)

    @rule(producer=producers)
    def begin(self, producer):
        if producer not in self.log.open:
            self.log.begin(producer)
            self.pending[producer] = []

    @rule(producer=producers, commit=st.booleans())
    def finish(self, producer, commit):
        if producer in self.log.open:
            self.log.finish(producer, commit=commit)
            for offset in self.pending.pop(producer):
                self.written[offset].committed = commit

    @rule()
    def roll(self):
        self.log.roll()

    @rule(ms=st.sampled_from([1, DELETE_RETENTION_MS // 2, DELETE_RETENTION_MS, 5 * DELETE_RETENTION_MS]))
    def wait(self, ms):
        self.log.now_ms += ms

    @rule(producer=producers)
    def forget(self, producer):
        if producer not in self.log.open:
            self.log.last_batches.pop(producer, None)

    @rule(limit=st.sampled_from([16, 1000]), segment_bytes=st.sampled_from([1, 400, 2**30]))
    def compact(self, limit, segment_bytes):
        self.log.compact(self.new_keys(limit), segment_bytes=segment_bytes)
        self._note_cleaned()

    @precondition(lambda self: self.log.active_base > 0)
    @rule(swap=st.integers(0, 40), recovery=st.integers(0, 40), segment_bytes=st.sampled_from([400, 2**30]))
    def compact_and_crash(self, swap, recovery, segment_bytes):
        """The broker dies in a swap, and again while it recovers; it did not note how far the log is clean."""
        result = compact(self.log.request(segment_bytes=segment_bytes), self.new_keys(1000))
        steps = (step for group in result.groups for step in swap_steps(self.folder, group))
        for _ in islice(steps, swap):
            pass
        for _ in islice(recovery_steps(self.folder), recovery):
            pass
        recover_swaps(self.folder)
        for written in self.written.values():
            # Each group is swapped by itself, so any part of the log may have been cleaned now.
            if written.record.offset < result.first_dirty and written.first_cleaned_ms is None:
                written.first_cleaned_ms = -1

    def _note_cleaned(self):
        for offset, written in self.written.items():
            if offset < self.log.first_dirty and written.first_cleaned_ms in (None, -1):
                written.first_cleaned_ms = self.log.now_ms

    def _committed(self, end=2**63):
        return [each.record for each in self.written.values() if each.committed and each.record.offset < end]

    @invariant()
    def readers_see_the_latest_of_each_key(self):
        expected = {}
        for record in self._committed(self.log.stable_end):
            if record.key is not None:
                expected[record.key] = record.value
        found = {record.key: record.value for record in self.log.records() if record.key is not None}
        assert _without_tombstones(found) == _without_tombstones(expected)

    @invariant()
    def what_is_left_is_as_it_was_written_and_in_order(self):
        records = self.log.records()
        assert records == [self.written[record.offset].record for record in records]
        assert [record.offset for record in records] == sorted({record.offset for record in records})

    @invariant()
    def the_clean_part_has_one_record_of_each_key_and_none_that_is_void(self):
        clean = [record for record in self.log.records() if record.offset < self.log.first_dirty]
        latest = {record.key: record.offset for record in self._committed(self.log.first_dirty)}
        assert all(record.key is not None and latest[record.key] == record.offset for record in clean)
        for batch in self.log.batches():
            if not batch.header.is_control and batch.header.last_offset < self.log.first_dirty:
                assert all(self.written[record.offset].committed for record in batch.records)

    @invariant()
    def nothing_outside_the_clean_part_is_missing(self):
        dirty = [record for record in self.log.records() if record.offset >= self.log.first_dirty]
        expected = [
            record for record in self._committed(self.log.stable_end) if record.offset >= self.log.first_dirty
        ]
        cleaned = {each.record.offset for each in self.written.values() if each.first_cleaned_ms is not None}
        assert [record for record in expected if record.offset not in cleaned] == [
            record for record in dirty if record.offset not in cleaned
        ]
        held = {record.offset for batch in self.log.batches() for record in batch.records}
        assert held >= {offset for offsets in self.pending.values() for offset in offsets}

    @invariant()
    def tombstones_stay_for_their_time(self):
        latest = {record.key: record for record in self._committed(self.log.stable_end)}
        held = {record.offset for record in self.log.records()}
        for record in latest.values():
            cleaned_ms = self.written[record.offset].first_cleaned_ms
            if record.key is not None and record.value is None and cleaned_ms != -1:
                is_young = cleaned_ms is None or self.log.now_ms < cleaned_ms + DELETE_RETENTION_MS
                assert record.offset in held or not is_young

    @invariant()
    def the_last_batch_of_each_producer_is_there(self):
        ends = {batch.header.last_offset for batch in self.log.batches()}
        assert ends >= set(self.log.last_batches.values())

    @invariant()
    def indexes_lead_to_batches(self):
        for base in self.log.bases:
            index = self.folder / f"{base:020d}.index"
            if index.exists():
                loaded = OffsetIndex.load(base, index.read_bytes())
                data = index.with_suffix(".log").stat().st_size
                assert all(0 <= position < data for position in loaded.positions)

    @invariant()
    def no_file_is_left_over(self):
        assert not [path for path in self.folder.iterdir() if path.suffix in (".cleaned", ".swap")]


def _without_tombstones(latest):
    return {key: value for key, value in latest.items() if value is not None}


TestCompaction = Compaction.TestCase
TestCompaction.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
