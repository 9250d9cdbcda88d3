"""Stateful model test of a share partition: deliveries, acknowledgments and restarts against a dict."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.broker.shares.partition_state import SharePartitionState
from headrace.broker.shares.progress import ArchiveReason
from headrace.broker.shares.records import read_ranges, write_ranges
from headrace.broker.shares.settings import ShareGroupConfig
from headrace.protocol.share import AcknowledgedRange, AcknowledgeType

LOCK_MS = 1_000
LIMIT = 3
MEMBERS = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(list(AcknowledgeType))
AVAILABLE, ACQUIRED, ARCHIVING, ACKNOWLEDGED, DEAD, LOST = (
    "available",
    "acquired",
    "archiving",
    "acknowledged",
    "dead",
    "lost",
)


@dataclass
class Expected:
    """One record in the model."""

    key: bytes | None
    due_ms: int
    state: str = AVAILABLE
    member: str = ""
    deadline_ms: int = 0
    deliveries: int = 0
    stored: int = 0
    """The delivery count after a restart: deliveries that ended."""
    delayed_until_ms: int = 0
    """When it may be delivered again after a release."""


def as_ranges(types: dict[int, AcknowledgeType]) -> list[AcknowledgedRange]:
    """Consecutive offsets as one range, with one type per record or one for all."""
    ranges: list[AcknowledgedRange] = []
    for offset, kind in types.items():
        if ranges and ranges[-1].last == offset - 1:
            ranges[-1] = ranges[-1]._replace(last=offset, types=(*ranges[-1].types, kind))
        else:
            ranges.append(AcknowledgedRange(offset, offset, (kind,)))
    return [each._replace(types=each.types[:1]) if len(set(each.types)) == 1 else each for each in ranges]


class Model(RuleBasedStateMachine):
    """A share partition and its model."""

    @initialize(key_order=st.booleans(), start=st.integers(0, 130))
    def begin(self, key_order: bool, start: int) -> None:
        self.config = ShareGroupConfig(
            lock_duration_ms=LOCK_MS, delivery_count_limit=LIMIT, key_order=key_order, max_record_locks=7
        )
        self.now_ms = 1_000_000
        self.log: dict[int, Expected] = {}
        self.first = self.end = start
        self.unreadable: set[int] = set()
        """The last offset of each unreadable batch."""
        self.stored_start = start
        self.stored: dict[int, bytes] = {}
        self.state = SharePartitionState(start, self.config)
        self.store()

    def store(self) -> None:
        """Store the changes."""
        start, chunks = self.state.progress.take_changes()
        self.stored_start = self.stored_start if start is None else start
        for chunk, ranges in chunks.items():
            if ranges:
                self.stored[chunk] = write_ranges(ranges)
            else:
                del self.stored[chunk]

    def eligible(self) -> list[int]:
        """The records that can be acquired now, in order."""
        free = [
            o
            for o, r in self.log.items()
            if r.state == AVAILABLE and max(r.due_ms, r.delayed_until_ms) <= self.now_ms
        ]
        if not self.config.key_order:
            return free
        firsts: dict[bytes, int] = {}
        for offset, record in self.log.items():
            if record.key is not None and record.state in (AVAILABLE, ACQUIRED):
                firsts.setdefault(record.key, offset)
        return [o for o in free if (key := self.log[o].key) is None or firsts[key] == o]

    def acquired_by(self, member: str) -> list[int]:
        return [o for o, r in self.log.items() if r.state == ACQUIRED and r.member == member]

    def pass_time(self) -> None:
        """Release records whose lock has expired, in the model."""
        for record in self.log.values():
            if record.state == ACQUIRED and record.deadline_ms <= self.now_ms:
                self.release(record)

    def release(self, record: Expected, delayed_until_ms: int = 0) -> None:
        record.stored = record.deliveries
        record.delayed_until_ms = delayed_until_ms
        record.state = ARCHIVING if record.deliveries >= LIMIT else AVAILABLE

    @rule(
        key=st.sampled_from([None, b"k", b"l"]), delay=st.sampled_from([0, 0, 1_500]), gap=st.integers(0, 2)
    )
    def append(self, key: bytes | None, delay: int, gap: int) -> None:
        offset = self.end + gap
        due_ms = self.now_ms + delay if delay and not self.config.key_order else 0
        self.log[offset] = Expected(key, due_ms)
        self.end = offset + 1

    def read(self, limit: int) -> None:
        """Read records until `limit` are available: consecutive plain ones together, as the reader does."""
        for offset, record in self.log.items():
            if self.state.available >= limit:
                return
            if offset < self.state.next_offset:
                continue
            if offset in self.unreadable:
                self.state.archive_unreadable(offset)
            elif self.is_plain(offset):
                last = next(o for o in itertools.count(offset) if not self.is_plain(o + 1))
                self.state.add_records(offset, last, limit, self.now_ms)
            else:
                self.state.add_record(offset, self.now_ms, key=record.key, due_ms=record.due_ms)

    def is_plain(self, offset: int) -> bool:
        record = self.log.get(offset)
        if offset in self.unreadable:
            return False
        return record is not None and not record.due_ms and (record.key is None or not self.config.key_order)

    @rule(member=MEMBERS, limit=st.integers(1, 9))
    def acquire(self, member: str, limit: int) -> None:
        self.state.expire(self.now_ms)
        self.store()
        self.read(limit)
        room = 7 - sum(r.state == ACQUIRED for r in self.log.values())
        expected = self.eligible()[: min(limit, room)]
        taken = self.state.acquire(member, limit, self.now_ms)
        assert taken == expected
        for offset in taken:
            record = self.log[offset]
            record.state, record.member = ACQUIRED, member
            record.deliveries += 1
            record.deadline_ms = self.now_ms + LOCK_MS
        counts = {
            o: each.deliveries
            for each in self.state.delivered_ranges(taken)
            for o in range(each.first, each.last + 1)
        }
        assert counts == {o: self.log[o].deliveries for o in taken}

    @rule(member=MEMBERS, data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> None:
        mine = self.acquired_by(member)
        if not mine:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(mine), min_size=1)))
        word = data.draw(KINDS)
        types = {offset: data.draw(st.sampled_from([word, word, *AcknowledgeType])) for offset in chosen}
        delay_ms = data.draw(st.sampled_from([0, 0, 700, 1_500]))
        ranges = [each._replace(delay_ms=delay_ms) for each in as_ranges(types)]
        assert self.state.acknowledge(member, ranges, self.now_ms) is ErrorCode.none
        self.store()
        for offset, kind in types.items():
            self.end_lock(self.log[offset], kind, delay_ms)

    def end_lock(self, record: Expected, kind: AcknowledgeType, delay_ms: int) -> None:
        if kind is AcknowledgeType.RELEASE:
            self.release(record, self.now_ms + delay_ms if delay_ms else 0)
        elif kind is AcknowledgeType.REJECT:
            record.state = ARCHIVING
        elif kind is AcknowledgeType.RENEW:
            record.deadline_ms = self.now_ms + LOCK_MS
        else:
            record.state = ACKNOWLEDGED

    @rule(member=MEMBERS, data=st.data())
    def acknowledge_records_without_a_lock(self, member: str, data: st.DataObject) -> None:
        others = [o for o in self.log if o >= self.state.start_offset and o not in self.acquired_by(member)]
        if not others:
            return
        wrong = data.draw(st.sampled_from(others))
        batches = [
            AcknowledgedRange(offset, offset, (1,)) for offset in sorted({*self.acquired_by(member), wrong})
        ]
        assert self.state.acknowledge(member, batches, self.now_ms) is ErrorCode.invalid_record_state

    @rule(ms=st.sampled_from([1, 400, LOCK_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.state.expire(self.now_ms)
        self.store()
        self.pass_time()
        deadline = self.state.next_deadline_ms()
        assert deadline is None or deadline > self.now_ms

    @rule(member=MEMBERS)
    def leave(self, member: str) -> None:
        self.state.release_member(member)
        self.store()
        for offset in self.acquired_by(member):
            self.release(self.log[offset])

    @precondition(lambda self: self.state.progress.archiving)
    @rule()
    def write_dead_letters(self) -> None:
        for offset, pending in list(self.state.progress.archiving.items()):
            record = self.log[offset]
            assert record.state == ARCHIVING
            assert (pending.reason is ArchiveReason.DELIVERY_LIMIT) <= (pending.deliveries == LIMIT)
            assert (pending.reason is ArchiveReason.UNREADABLE) == (offset in self.unreadable)
            self.state.dead_letter_written(offset)
            record.state = DEAD
        self.store()

    @rule(count=st.integers(1, 200))
    def append_an_unreadable_batch(self, count: int) -> None:
        """An unreadable batch is one dead letter, represented by its last offset."""
        self.read(len(self.log) + 1)
        if self.state.next_offset < self.end:
            return  # the model reads records in order
        self.end += count
        self.log[self.end - 1] = Expected(None, 0, state=ARCHIVING)
        self.unreadable.add(self.end - 1)
        self.state.archive_unreadable(self.end - 1)
        self.store()

    @rule()
    def restart(self) -> None:
        """kill -9: only the stored state remains."""
        self.state = SharePartitionState(self.stored_start, self.config, is_stored=True)
        for chunk, data in self.stored.items():
            self.state.progress.restore(chunk, read_ranges(data))
        for record in self.log.values():
            if record.state == ACQUIRED:
                record.state, record.deliveries = AVAILABLE, record.stored

    @rule(data=st.data())
    def delete_the_oldest(self, data: st.DataObject) -> None:
        """Retention."""
        self.first = data.draw(st.integers(self.first, max(self.first, self.state.next_offset)))
        self.state.advance_to(self.first)
        for offset, record in self.log.items():
            if offset < self.first and record.state in (AVAILABLE, ACQUIRED):
                record.state = LOST
        self.store()

    @invariant()
    def no_record_is_lost(self) -> None:
        open_states = {
            o for o, r in self.log.items() if r.state in (AVAILABLE, ACQUIRED, ARCHIVING) and o >= self.first
        }
        assert not open_states or self.state.start_offset <= min(open_states)
        assert set(self.state.acquired) == {o for o, r in self.log.items() if r.state == ACQUIRED}
        assert {o for o in self.state.progress.archiving if o >= self.first} == {
            o for o, r in self.log.items() if r.state == ARCHIVING and o >= self.first
        }
        assert not any(o in self.state.progress.acknowledged for o in open_states)

    def teardown(self) -> None:
        """In the end all remaining records can be acquired."""
        if not hasattr(self, "state"):
            return
        self.now_ms += 10 * LOCK_MS
        self.state.expire(self.now_ms)
        self.pass_time()
        left = {o for o, r in self.log.items() if r.state == AVAILABLE and o >= self.first}
        got: set[int] = set()
        while left - got:
            before = len(got)
            self.read(len(self.log))
            for offset in self.state.acquire("z", 100, self.now_ms):
                got.add(offset)
                assert (
                    self.state.acknowledge("z", [AcknowledgedRange(offset, offset, (1,))], self.now_ms) == 0
                )
            assert len(got) > before, f"{left - got} cannot be acquired"
        assert got == left


TestSharePartition = Model.TestCase
TestSharePartition.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
