"""One partition as one share group sees it: which records wait, which are in whose hands, which are done.

Decisions only: offsets, members and times come in, and what must be stored or buried goes out. The records
themselves, clocks and files are elsewhere, so that every course of events can be tried.

    start ≤ (done, held, archiving, ready, delayed, behind a key) < next ≤ end of the log

All below `start` is done; nothing from `next` on has been looked at. A restart knows the `Progress`, and
looks at the records behind its start again.

Records that are acknowledged in a row are looked at one by one, and done as one: most of a queue's work is
that, and a busy one does it tens of thousands of times a second.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.shares.key_order import KeyOrder
from headrace.broker.shares.progress import Progress, known_between
from headrace.broker.shares.states import Acknowledgement, Burial, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.broker.shares.settings import ShareGroupConfig
    from headrace.protocol.share import AcknowledgedRange


class Hold(NamedTuple):
    """Records in a member's hands: all that came together, and for the same time, have one."""

    member: str
    deliveries: int
    deadline_ms: int


class Delivered(NamedTuple):
    """Records in a row that a member has got, and for the how manieth time."""

    first: int
    last: int
    deliveries: int


class SharePartition:
    """The state machine of one share group on one partition."""

    def __init__(self, start: int, config: ShareGroupConfig, *, is_stored: bool = False) -> None:
        self.config = config
        self.next = start
        self.progress = Progress(start, is_stored=is_stored)
        self._held: dict[int, Hold] = {}
        self._ready: list[int] = []
        self._delayed: list[tuple[int, int, bytes | None]] = []
        self._deadlines: list[tuple[int, int]] = []
        self._keys = KeyOrder()

    @property
    def start(self) -> int:
        """The first record that is not done."""
        return self.progress.start

    @property
    def held(self) -> Mapping[int, Hold]:
        """Which records are in whose hands."""
        return self._held

    # ---------------------------------------------------------------- looking at records

    def see(self, offset: int, now_ms: int, *, key: bytes | None = None, due_ms: int = 0) -> None:
        """Look at the next record; what lies between it and the last one seen is not there."""
        self.skip(offset - 1)
        self.next = max(self.next, offset + 1)
        if self.progress.is_settled(offset):
            return
        released_until_ms = self.progress.due.get(offset, 0)
        if due_ms > max(now_ms, released_until_ms):
            heapq.heappush(self._delayed, (due_ms, offset, key))
        elif released_until_ms > now_ms:
            # It was delivered before the broker's restart: it stays the first of its key.
            if key is None or not self.config.key_order or self._keys.join(offset, key):
                heapq.heappush(self._delayed, (released_until_ms, offset, None))
        else:
            self._enter(offset, key)

    def see_all(self, first: int, last: int, enough: int, now_ms: int) -> None:
        """Look at plain records in a row until `enough` are ready."""
        stop = min(last + 1, first + enough - len(self._ready))
        if stop > first and self.progress.is_untouched(first, stop - 1):
            self.skip(first - 1)
            # Larger than all that are there: the heap stays one.
            self._ready.extend(range(first, stop))
            self.next = stop
            return
        offset = first
        while offset <= last and len(self._ready) < enough:
            self.see(offset, now_ms)
            self.next = min(self.progress.done.after(self.next), last + 1)
            offset = self.next

    def pass_done(self) -> None:
        """Go on behind what is done, which need not be looked at."""
        self.next = self.progress.done.after(self.next)

    def skip(self, last: int) -> None:
        """Pass over what is for nobody, up to `last`: the ends of transactions, and aborted records."""
        if last >= self.next:
            self.progress.pass_over(self.next, last)
            self.next = last + 1
            self._advance()

    def give_up_unreadable(self, last: int) -> None:
        """Let the records that cannot be read, up to `last`, the end of their batch, be one dead letter.

        The last of them stands for it: a restart may meet the batch anywhere, and its last offset shows
        whether the letter is written.
        """
        self.skip(last - 1)
        if self.config.dead_letters and not self.progress.is_settled(last):
            self.progress.condemn(last, Burial(Reason.UNREADABLE, 0))
        if last in self.progress.archiving:
            self.next = last + 1  # not to be passed over: its letter is still to be written
        self.skip(last)

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
        return end - self.start - self.progress.done.total()

    def room(self) -> int:
        """How many records more may be locked."""
        return max(self.config.max_record_locks - len(self._held), 0)

    def acquire(self, member: str, limit: int, now_ms: int) -> list[int]:
        """The offsets that the member now holds, in order."""
        deadline_ms = now_ms + self.config.lock_duration_ms
        count = min(limit, self.room(), len(self._ready))
        taken = [heapq.heappop(self._ready) for _ in range(count)]
        if not taken:
            return taken
        first_time = Hold(member, 1, deadline_ms)
        self._held.update(dict.fromkeys(taken, first_time))
        for offset in taken if self.progress.deliveries else ():
            deliveries = self.progress.deliveries.get(offset)
            if deliveries is not None:
                self._held[offset] = Hold(member, deliveries + 1, deadline_ms)
                self.progress.deliver(offset)
        # All of them have one deadline: the last offset stands for them.
        heapq.heappush(self._deadlines, (deadline_ms, taken[-1]))
        return taken

    def give_back(self, offsets: Iterable[int]) -> None:
        """Undo an acquisition that could not be answered, as if it had never been."""
        for offset in offsets:
            del self._held[offset]
            heapq.heappush(self._ready, offset)

    def discard(self, offsets: Sequence[int]) -> None:
        """Be done with records that are not in the log any more."""
        for offset in offsets:
            self._held.pop(offset, None)
            self._finish(offset, offset)
        if offsets:
            self._advance()

    def delivered(self, offsets: Sequence[int]) -> list[Delivered]:
        """Held offsets, in order, as runs of the same number of deliveries."""
        runs: list[Delivered] = []
        first = last = deliveries = -1
        for offset in offsets:
            count = self._held[offset].deliveries
            if offset != last + 1 or count != deliveries:
                if deliveries > 0:
                    runs.append(Delivered(first, last, deliveries))
                first, deliveries = offset, count
            last = offset
        if deliveries > 0:
            runs.append(Delivered(first, last, deliveries))
        return runs

    # ---------------------------------------------------------------- acknowledgement

    def acknowledge(self, member: str, ranges: Sequence[AcknowledgedRange], now_ms: int) -> ErrorCode:
        """Do what the member says of its records; when one of them is not its own, nothing is done."""
        error = self._check(member, ranges)
        if error is not ErrorCode.none:
            return error
        for first, last, kind, delay_ms in _words(ranges, self.start):
            if kind == Acknowledgement.ACCEPT:
                for offset in range(first, last + 1):
                    del self._held[offset]
                self._finish(first, last)
                continue
            # A gap may be said to be of any length: what is held is not.
            for offset in known_between(self._held, first, last):
                self._apply(offset, kind, now_ms, delay_ms)
        self._advance()
        return ErrorCode.none

    def _check(self, member: str, ranges: Sequence[AcknowledgedRange]) -> ErrorCode:
        seen = -1
        for first, last, types, _ in ranges:
            if not seen < first <= last or len(types) not in (1, last - first + 1):
                return ErrorCode.invalid_request
            if not _KINDS.issuperset(types):
                return ErrorCode.invalid_request
            seen = last
        if seen >= self.next:
            return ErrorCode.invalid_record_state
        held = self._held
        for first, last, kind, _ in _words(ranges, self.start):
            for offset in range(first, last + 1) if kind else ():
                hold = held.get(offset)
                # What the log has lost meanwhile, and gaps that were never handed out, need none.
                if hold is None or hold.member != member:
                    return ErrorCode.invalid_record_state
        return ErrorCode.none

    def _apply(self, offset: int, kind: int, now_ms: int, delay_ms: int) -> None:
        if kind == Acknowledgement.RELEASE:
            self._release(offset, now_ms + delay_ms if delay_ms > 0 else 0)
        elif kind == Acknowledgement.REJECT:
            self._bury(offset, Reason.REJECTED)
        elif kind == Acknowledgement.RENEW:
            deadline_ms = now_ms + self.config.lock_duration_ms
            self._held[offset] = self._held[offset]._replace(deadline_ms=deadline_ms)
            heapq.heappush(self._deadlines, (deadline_ms, offset))
        else:
            del self._held[offset]
            self._finish(offset, offset)

    def _release(self, offset: int, due_ms: int = 0) -> None:
        deliveries = self._held[offset].deliveries
        if deliveries >= self.config.delivery_count_limit:
            self._bury(offset, Reason.LIMIT)
            return
        del self._held[offset]
        self.progress.give_up(offset, deliveries, due_ms)
        if due_ms:
            # Without its key: it is in the row of that already, and stays the first there.
            heapq.heappush(self._delayed, (due_ms, offset, None))
        else:
            heapq.heappush(self._ready, offset)

    def _bury(self, offset: int, reason: Reason) -> None:
        hold = self._held.pop(offset)
        if not self.config.dead_letters:
            self._finish(offset, offset)
            return
        self.progress.condemn(offset, Burial(reason, hold.deliveries))
        self._unblock(offset)

    def buried(self, offset: int) -> None:
        """The dead letter of a record is written."""
        if self.progress.archiving.pop(offset, None) is not None:
            self._finish(offset, offset)
            self._advance()

    # ---------------------------------------------------------------- time, and members that go

    def expire(self, now_ms: int) -> None:
        """Give back what was held for too long, and let those wait no longer whose time has come."""
        is_overdue = False
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            heapq.heappop(self._deadlines)
            is_overdue = True
        if is_overdue:
            self._release_all(o for o, hold in self._held.items() if hold.deadline_ms <= now_ms)
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, offset, key = heapq.heappop(self._delayed)
            if offset >= self.start and not self.progress.is_settled(offset):
                self._enter(offset, key)

    def release_member(self, member: str) -> None:
        """Give back everything that a member holds."""
        self._release_all(offset for offset, hold in self._held.items() if hold.member == member)

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
        for offset in [offset for offset in self._held if offset < start]:
            del self._held[offset]
        for offset in self._keys.below(start):
            self._unblock(offset)
        self._ready = [offset for offset in self._ready if offset >= start]
        heapq.heapify(self._ready)
        self.progress.move_start(start)
        self._advance()

    def _finish(self, first: int, last: int) -> None:
        self.progress.finish(first, last)
        if self._keys:
            for offset in known_between(self._keys.offsets, first, last):
                self._unblock(offset)

    def _unblock(self, offset: int) -> None:
        following = self._keys.leave(offset)
        if following is not None:
            heapq.heappush(self._ready, following)

    def _advance(self) -> None:
        self.progress.advance()
        self.next = max(self.next, self.start)


def _words(ranges: Iterable[AcknowledgedRange], start: int) -> Iterator[tuple[int, int, int, int]]:
    """Records from `start` on of which the same is said: first, last, the word for them, and a delay."""
    for first, last, types, delay_ms in ranges:
        if last < start:
            continue
        if types.count(types[0]) == len(types):
            yield max(first, start), last, types[0], delay_ms
        else:
            for offset in range(max(first, start), last + 1):
                yield offset, offset, types[offset - first], delay_ms


_KINDS: Final = frozenset(Acknowledgement)
