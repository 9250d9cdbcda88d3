"""A share partition under arbitrary deliveries, acknowledgements and restarts, against a plain dict."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode

from headrace.broker.shares.records import read_runs, write_runs
from headrace.broker.shares.settings import ShareGroupConfig
from headrace.broker.shares.share_partition import SharePartition
from headrace.broker.shares.states import Acknowledgement, Reason
from headrace.protocol.share import AcknowledgedRange

LOCK_MS = 1_000
LIMIT = 3
MEMBERS = st.sampled_from(["a", "b", "c"])
KINDS = st.sampled_from(list(Acknowledgement))
WAITING, HELD, DYING, DONE, DEAD, LOST = "waiting", "held", "dying", "done", "dead", "lost"


@dataclass
class Expected:
    """One record as the model knows it."""

    key: bytes | None
    due_ms: int
    state: str = WAITING
    member: str = ""
    deadline_ms: int = 0
    deliveries: int = 0
    stored: int = 0
    """Deliveries that a restart remembers: those that ended."""
    held_back_ms: int = 0
    """Until when a release holds it back."""


def as_ranges(said: dict[int, Acknowledgement]) -> list[AcknowledgedRange]:
    """Neighbours in one range: with a word for each, or one for all of them when it is the same."""
    ranges: list[AcknowledgedRange] = []
    for offset, kind in said.items():
        if ranges and ranges[-1].last == offset - 1:
            ranges[-1] = ranges[-1]._replace(last=offset, types=(*ranges[-1].types, kind))
        else:
            ranges.append(AcknowledgedRange(offset, offset, (kind,)))
    return [each._replace(types=each.types[:1]) if len(set(each.types)) == 1 else each for each in ranges]


class Model(RuleBasedStateMachine):
    """What a share partition does, and what it must do."""

    @initialize(key_order=st.booleans(), start=st.integers(0, 130))
    def begin(self, key_order: bool, start: int) -> None:
        self.config = ShareGroupConfig(
            lock_duration_ms=LOCK_MS, delivery_count_limit=LIMIT, key_order=key_order, max_record_locks=7
        )
        self.now_ms = 1_000_000
        self.log: dict[int, Expected] = {}
        self.first = self.end = start
        self.unreadable: set[int] = set()
        """The last offset of each batch of nonsense."""
        self.stored_start = start
        self.stored: dict[int, bytes] = {}
        self.share = SharePartition(start, self.config)
        self.store()

    def store(self) -> None:
        """Keep what changed, as the log would."""
        start, chunks = self.share.progress.take_changes()
        self.stored_start = self.stored_start if start is None else start
        for chunk, runs in chunks.items():
            if runs:
                self.stored[chunk] = write_runs(runs)
            else:
                del self.stored[chunk]

    def eligible(self) -> list[int]:
        """The records that a member could be given now, in order."""
        free = [
            o
            for o, r in self.log.items()
            if r.state == WAITING and max(r.due_ms, r.held_back_ms) <= self.now_ms
        ]
        if not self.config.key_order:
            return free
        firsts: dict[bytes, int] = {}
        for offset, record in self.log.items():
            if record.key is not None and record.state in (WAITING, HELD):
                firsts.setdefault(record.key, offset)
        return [o for o in free if (key := self.log[o].key) is None or firsts[key] == o]

    def held_by(self, member: str) -> list[int]:
        return [o for o, r in self.log.items() if r.state == HELD and r.member == member]

    def pass_time(self) -> None:
        """Locks that ran out, in the model."""
        for record in self.log.values():
            if record.state == HELD and record.deadline_ms <= self.now_ms:
                self.give_up(record)

    def give_up(self, record: Expected, held_back_ms: int = 0) -> None:
        record.stored = record.deliveries
        record.held_back_ms = held_back_ms
        record.state = DYING if record.deliveries >= LIMIT else WAITING

    @rule(
        key=st.sampled_from([None, b"k", b"l"]), delay=st.sampled_from([0, 0, 1_500]), gap=st.integers(0, 2)
    )
    def append(self, key: bytes | None, delay: int, gap: int) -> None:
        offset = self.end + gap
        due_ms = self.now_ms + delay if delay and not self.config.key_order else 0
        self.log[offset] = Expected(key, due_ms)
        self.end = offset + 1

    def look(self, enough: int) -> None:
        """Look at records until enough are ready: plain ones in a row together, as the reader does."""
        for offset, record in self.log.items():
            if self.share.ready >= enough:
                return
            if offset < self.share.next:
                continue
            if offset in self.unreadable:
                self.share.give_up_unreadable(offset)
            elif self.is_plain(offset):
                last = next(o for o in itertools.count(offset) if not self.is_plain(o + 1))
                self.share.see_all(offset, last, enough, self.now_ms)
            else:
                self.share.see(offset, self.now_ms, key=record.key, due_ms=record.due_ms)

    def is_plain(self, offset: int) -> bool:
        record = self.log.get(offset)
        if offset in self.unreadable:
            return False
        return record is not None and not record.due_ms and (record.key is None or not self.config.key_order)

    @rule(member=MEMBERS, limit=st.integers(1, 9))
    def acquire(self, member: str, limit: int) -> None:
        self.share.expire(self.now_ms)
        self.store()
        self.look(limit)
        room = 7 - sum(r.state == HELD for r in self.log.values())
        expected = self.eligible()[: min(limit, room)]
        taken = self.share.acquire(member, limit, self.now_ms)
        assert taken == expected
        for offset in taken:
            record = self.log[offset]
            record.state, record.member = HELD, member
            record.deliveries += 1
            record.deadline_ms = self.now_ms + LOCK_MS
        counts = {
            o: run.deliveries for run in self.share.delivered(taken) for o in range(run.first, run.last + 1)
        }
        assert counts == {o: self.log[o].deliveries for o in taken}

    @rule(member=MEMBERS, data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> None:
        mine = self.held_by(member)
        if not mine:
            return
        chosen = sorted(data.draw(st.sets(st.sampled_from(mine), min_size=1)))
        word = data.draw(KINDS)
        said = {offset: data.draw(st.sampled_from([word, word, *Acknowledgement])) for offset in chosen}
        delay_ms = data.draw(st.sampled_from([0, 0, 700, 1_500]))
        ranges = [each._replace(delay_ms=delay_ms) for each in as_ranges(said)]
        assert self.share.acknowledge(member, ranges, self.now_ms) is ErrorCode.none
        self.store()
        for offset, kind in said.items():
            self.end_hold(self.log[offset], kind, delay_ms)

    def end_hold(self, record: Expected, kind: Acknowledgement, delay_ms: int) -> None:
        if kind is Acknowledgement.RELEASE:
            self.give_up(record, self.now_ms + delay_ms if delay_ms else 0)
        elif kind is Acknowledgement.REJECT:
            record.state = DYING
        elif kind is Acknowledgement.RENEW:
            record.deadline_ms = self.now_ms + LOCK_MS
        else:
            record.state = DONE

    @rule(member=MEMBERS, data=st.data())
    def acknowledge_what_is_not_held(self, member: str, data: st.DataObject) -> None:
        others = [o for o in self.log if o >= self.share.start and o not in self.held_by(member)]
        if not others:
            return
        wrong = data.draw(st.sampled_from(others))
        batches = [
            AcknowledgedRange(offset, offset, (1,)) for offset in sorted({*self.held_by(member), wrong})
        ]
        assert self.share.acknowledge(member, batches, self.now_ms) is ErrorCode.invalid_record_state

    @rule(ms=st.sampled_from([1, 400, LOCK_MS]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.share.expire(self.now_ms)
        self.store()
        self.pass_time()
        deadline = self.share.next_deadline_ms()
        assert deadline is None or deadline > self.now_ms

    @rule(member=MEMBERS)
    def die(self, member: str) -> None:
        self.share.release_member(member)
        self.store()
        for offset in self.held_by(member):
            self.give_up(self.log[offset])

    @precondition(lambda self: self.share.progress.archiving)
    @rule()
    def bury(self) -> None:
        for offset, burial in list(self.share.progress.archiving.items()):
            record = self.log[offset]
            assert record.state == DYING
            assert (burial.reason is Reason.LIMIT) <= (burial.deliveries == LIMIT)
            assert (burial.reason is Reason.UNREADABLE) == (offset in self.unreadable)
            self.share.buried(offset)
            record.state = DEAD
        self.store()

    @rule(count=st.integers(1, 200))
    def append_what_cannot_be_read(self, count: int) -> None:
        """A batch of nonsense: one dead letter, for which its last offset stands."""
        self.look(len(self.log) + 1)
        if self.share.next < self.end:
            return  # the model looks at records in their order
        self.end += count
        self.log[self.end - 1] = Expected(None, 0, state=DYING)
        self.unreadable.add(self.end - 1)
        self.share.give_up_unreadable(self.end - 1)
        self.store()

    @rule()
    def restart(self) -> None:
        """kill −9: what was stored is all there is."""
        self.share = SharePartition(self.stored_start, self.config, is_stored=True)
        for chunk, data in self.stored.items():
            self.share.progress.restore(chunk, read_runs(data))
        for record in self.log.values():
            if record.state == HELD:
                record.state, record.deliveries = WAITING, record.stored

    @rule(data=st.data())
    def lose_the_oldest(self, data: st.DataObject) -> None:
        """Retention."""
        self.first = data.draw(st.integers(self.first, max(self.first, self.share.next)))
        self.share.move_start(self.first)
        for offset, record in self.log.items():
            if offset < self.first and record.state in (WAITING, HELD):
                record.state = LOST
        self.store()

    @invariant()
    def nothing_is_forgotten(self) -> None:
        open_states = {
            o for o, r in self.log.items() if r.state in (WAITING, HELD, DYING) and o >= self.first
        }
        assert not open_states or self.share.start <= min(open_states)
        assert set(self.share.held) == {o for o, r in self.log.items() if r.state == HELD}
        assert {o for o in self.share.progress.archiving if o >= self.first} == {
            o for o, r in self.log.items() if r.state == DYING and o >= self.first
        }
        assert not any(o in self.share.progress.done for o in open_states)

    def teardown(self) -> None:
        """In the end everything that is not done can be had."""
        if not hasattr(self, "share"):
            return
        self.now_ms += 10 * LOCK_MS
        self.share.expire(self.now_ms)
        self.pass_time()
        left = {o for o, r in self.log.items() if r.state == WAITING and o >= self.first}
        got: set[int] = set()
        while left - got:
            before = len(got)
            self.look(len(self.log))
            for offset in self.share.acquire("z", 100, self.now_ms):
                got.add(offset)
                assert (
                    self.share.acknowledge("z", [AcknowledgedRange(offset, offset, (1,))], self.now_ms) == 0
                )
            assert len(got) > before, f"{left - got} cannot be had"
        assert got == left


TestSharePartition = Model.TestCase
TestSharePartition.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
