"""One partition as one share group sees it: which records wait, which are in whose hands, which are done.

Decisions only: offsets, members and times come in, and what must be stored or buried goes out. The records
themselves, clocks and files are elsewhere, so that every course of events can be tried.

    start ≤ (done, held, archiving, ready, delayed, behind a key) < next ≤ end of the log

All below `start` is done; nothing from `next` on has been looked at. A restart knows `start`, and what is
stored of the records behind it; it looks at them again from there.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.shares.chunks import Chunks
from headrace.broker.shares.key_order import KeyOrder
from headrace.broker.shares.ranges import Ranges
from headrace.broker.shares.states import Acknowledgement, Burial, Reason, Run, StoredState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.broker.shares.settings import ShareGroupConfig


class Acknowledged(NamedTuple):
    """What a member says of the records from `first` to `last`: one word for all, or one for each."""

    first: int
    last: int
    types: Sequence[int]

    def each(self, start: int) -> Iterator[tuple[int, int]]:
        """Each offset from `start` on with its word."""
        for offset in range(max(self.first, start), self.last + 1):
            yield offset, self.types[0] if len(self.types) == 1 else self.types[offset - self.first]


class Hold:
    """A record in a member's hands."""

    __slots__ = ("deadline_ms", "deliveries", "member")

    def __init__(self, member: str, deliveries: int, deadline_ms: int) -> None:
        self.member = member
        self.deliveries = deliveries
        self.deadline_ms = deadline_ms


class Delivered(NamedTuple):
    """Records in a row that a member has got, and for the how manieth time."""

    first: int
    last: int
    deliveries: int


class SharePartition:
    """The state machine of one share group on one partition."""

    def __init__(self, start: int, config: ShareGroupConfig, *, is_stored: bool = False) -> None:
        self.config = config
        self.start = start
        self.next = start
        self.done = Ranges()
        self.held: dict[int, Hold] = {}
        self.deliveries: dict[int, int] = {}
        """How often a record that is not done has been delivered in vain."""
        self.archiving: dict[int, Burial] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int, bytes | None]] = []
        self._deadlines: list[tuple[int, int]] = []
        self._keys = KeyOrder()
        self.chunks = Chunks(start if is_stored else None)

    # ---------------------------------------------------------------- looking at records

    def see(self, offset: int, now_ms: int, *, key: bytes | None = None, due_ms: int = 0) -> None:
        """Look at the next record; what lies between it and the last one seen is not there."""
        if offset > self.next:
            self._finish_range(self.next, offset - 1)
        self.next = offset + 1
        if offset in self.archiving or offset in self.done:
            return
        if due_ms > now_ms:
            heapq.heappush(self._delayed, (due_ms, offset, key))
        else:
            self._enter(offset, key)

    def see_all(self, first: int, last: int, enough: int) -> None:
        """Look at plain records in a row until `enough` are ready."""
        offset = first
        while offset <= last and len(self._ready) < enough:
            self.see(offset, 0)
            offset = self.next

    def pass_done(self) -> None:
        """Go on behind what is done, which need not be looked at."""
        self.next = self.done.after(self.next)

    def skip(self, last: int) -> None:
        """Pass over what is for nobody, up to `last`: the ends of transactions, and aborted records."""
        if last >= self.next:
            self._finish_range(self.next, last)
            self.next = last + 1

    def _enter(self, offset: int, key: bytes | None) -> None:
        if key is None or not self.config.key_order or self._keys.join(offset, key):
            heapq.heappush(self._ready, offset)

    # ---------------------------------------------------------------- delivery

    @property
    def ready(self) -> int:
        """How many records could be taken now."""
        return len(self._ready)

    @property
    def behind(self) -> int:
        """How many records wait for another one of their key."""
        return self._keys.waiting

    @property
    def delayed(self) -> int:
        """How many records wait for their time."""
        return len(self._delayed)

    def lag(self, end: int) -> int:
        """How many records up to `end` are not done."""
        return end - self.start - self.done.total()

    def room(self) -> int:
        """How many records more may be locked."""
        return max(self.config.max_record_locks - len(self.held), 0)

    def acquire(self, member: str, limit: int, now_ms: int) -> list[int]:
        """The offsets that the member now holds, in order."""
        taken: list[int] = []
        deadline_ms = now_ms + self.config.lock_duration_ms
        limit = min(limit, self.room())
        while self._ready and len(taken) < limit:
            offset = heapq.heappop(self._ready)
            self.held[offset] = Hold(member, self.deliveries.get(offset, 0) + 1, deadline_ms)
            taken.append(offset)
        if taken:
            # All of them have one deadline: the last offset stands for them.
            heapq.heappush(self._deadlines, (deadline_ms, taken[-1]))
        return taken

    def give_back(self, offsets: Iterable[int]) -> None:
        """Undo an acquisition that could not be answered, as if it had never been."""
        for offset in offsets:
            del self.held[offset]
            heapq.heappush(self._ready, offset)

    def discard(self, offsets: Iterable[int]) -> None:
        """Be done with records that are not in the log any more."""
        for offset in offsets:
            self.held.pop(offset, None)
            self._finish(offset)
        self._advance()

    def delivered(self, offsets: Sequence[int]) -> list[Delivered]:
        """Held offsets, in order, as runs of the same number of deliveries."""
        runs: list[Delivered] = []
        for offset in offsets:
            deliveries = self.held[offset].deliveries
            last = runs[-1] if runs else None
            if last is not None and last.last + 1 == offset and last.deliveries == deliveries:
                runs[-1] = last._replace(last=offset)
            else:
                runs.append(Delivered(offset, offset, deliveries))
        return runs

    # ---------------------------------------------------------------- acknowledgement

    def acknowledge(self, member: str, batches: Sequence[Acknowledged], now_ms: int) -> ErrorCode:
        """Do what the member says of its records; when one of them is not its own, nothing is done."""
        error = self._check(member, batches)
        if error is not ErrorCode.none:
            return error
        for batch in batches:
            for offset, kind in batch.each(self.start):
                if offset in self.held:
                    self._apply(offset, kind, now_ms)
        self._advance()
        return ErrorCode.none

    def _check(self, member: str, batches: Sequence[Acknowledged]) -> ErrorCode:
        seen = -1
        for batch in batches:
            if not seen < batch.first <= batch.last or len(batch.types) not in (
                1,
                batch.last - batch.first + 1,
            ):
                return ErrorCode.invalid_request
            if any(kind not in _KINDS for kind in batch.types):
                return ErrorCode.invalid_request
            seen = batch.last
            if batch.last >= self.next:
                return ErrorCode.invalid_record_state
            for offset, kind in batch.each(self.start):
                hold = self.held.get(offset)
                # What the log has lost meanwhile, and gaps that were never handed out, need none.
                if kind and (hold is None or hold.member != member):
                    return ErrorCode.invalid_record_state
        return ErrorCode.none

    def _apply(self, offset: int, kind: int, now_ms: int) -> None:
        if kind == Acknowledgement.RELEASE:
            self._release(offset)
        elif kind == Acknowledgement.REJECT:
            self._bury(offset, Reason.REJECTED)
        elif kind == Acknowledgement.RENEW:
            hold = self.held[offset]
            hold.deadline_ms = now_ms + self.config.lock_duration_ms
            heapq.heappush(self._deadlines, (hold.deadline_ms, offset))
        else:
            del self.held[offset]
            self._finish(offset)

    def _release(self, offset: int) -> None:
        hold = self.held[offset]
        if hold.deliveries >= self.config.delivery_count_limit:
            self._bury(offset, Reason.LIMIT)
            return
        del self.held[offset]
        self.deliveries[offset] = hold.deliveries
        self.chunks.touch(offset, offset)
        heapq.heappush(self._ready, offset)

    def _bury(self, offset: int, reason: Reason) -> None:
        hold = self.held.pop(offset)
        if not self.config.dead_letters:
            self._finish(offset)
            return
        self.archiving[offset] = Burial(reason, hold.deliveries)
        self.deliveries.pop(offset, None)
        self.chunks.touch(offset, offset)
        self._unblock(offset)

    def locate_burials(self, position: int) -> None:
        """Note where the topic of dead letters ends now, for those that were decided since the last time."""
        for offset, burial in self.archiving.items():
            if burial.position < 0:
                self.archiving[offset] = burial._replace(position=position)

    def buried(self, offset: int) -> None:
        """The dead letter of a record is written."""
        if self.archiving.pop(offset, None) is not None:
            self._finish(offset)
            self._advance()

    # ---------------------------------------------------------------- time, and members that go

    def expire(self, now_ms: int) -> None:
        """Give back what was held for too long, and let those wait no longer whose time has come."""
        is_overdue = False
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            heapq.heappop(self._deadlines)
            is_overdue = True
        if is_overdue:
            self._release_all(o for o, hold in self.held.items() if hold.deadline_ms <= now_ms)
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, offset, key = heapq.heappop(self._delayed)
            if offset >= self.start:
                self._enter(offset, key)

    def release_member(self, member: str) -> None:
        """Give back everything that a member holds."""
        self._release_all(offset for offset, hold in self.held.items() if hold.member == member)

    def _release_all(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            self._release(offset)
        self._advance()

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, or a little before."""
        times = [heap[0][0] for heap in (self._deadlines, self._delayed) if heap]
        return min(times, default=None)

    # ---------------------------------------------------------------- ends

    def move_start(self, start: int) -> None:
        """Forget the records below `start`: the log has none of them any more."""
        if start <= self.start:
            return
        for offset in [offset for offset in self.held if offset < start]:
            del self.held[offset]
        for offset in self._keys.below(start):
            self._unblock(offset)
        self._ready = [offset for offset in self._ready if offset >= start]
        heapq.heapify(self._ready)
        for offset in [offset for offset in self.deliveries if offset < start]:
            del self.deliveries[offset]
        self._finish_range(self.start, start - 1)

    def _finish(self, offset: int) -> None:
        self.deliveries.pop(offset, None)
        self.done.add(offset, offset)
        self.chunks.touch(offset, offset)
        self._unblock(offset)

    def _finish_range(self, first: int, last: int) -> None:
        self.done.add(first, last)
        self.chunks.touch(first, last)
        self._advance()

    def _unblock(self, offset: int) -> None:
        following = self._keys.leave(offset)
        if following is not None:
            heapq.heappush(self._ready, following)

    def _advance(self) -> None:
        self.start = self.done.take_from(self.start)
        self.next = max(self.next, self.start)

    # ---------------------------------------------------------------- storing

    def take_changes(self) -> tuple[int | None, Mapping[int, Sequence[Run]]]:
        """The new start, if it moved, and the chunks that changed, empty ones to be deleted."""
        return self.chunks.take(self.start, self._runs)

    def restore(self, chunk: int, runs: Iterable[Run]) -> None:
        """Take over what is stored of a chunk; before any record is looked at."""
        self.chunks.stored.add(chunk)
        for run in runs:
            if run.last < self.start:
                continue
            first = max(run.first, self.start)
            if run.state is StoredState.DONE:
                self.done.add(first, run.last)
                continue
            for offset in range(first, run.last + 1):
                if run.state is StoredState.ARCHIVING:
                    self.archiving[offset] = Burial(run.reason, run.deliveries, run.position)
                else:
                    self.deliveries[offset] = run.deliveries

    def _runs(self, first: int, last: int) -> list[Run]:
        runs = [Run(begin, end, StoredState.DONE) for begin, end in self.done.between(first, last)]
        if self.archiving or self.deliveries:
            runs += [run for offset in range(first, last + 1) if (run := self._run(offset)) is not None]
        return runs

    def _run(self, offset: int) -> Run | None:
        burial = self.archiving.get(offset)
        if burial is not None:
            return Run(
                offset, offset, StoredState.ARCHIVING, burial.deliveries, burial.reason, burial.position
            )
        deliveries = self.deliveries.get(offset)
        return None if deliveries is None else Run(offset, offset, StoredState.AVAILABLE, deliveries)


_KINDS: Final = frozenset(Acknowledgement)
