"""How far a share group is in a partition: what is done, and what a restart must know of the rest.

All below `start` is done. Of the records behind it the log keeps which are done as well, how often one was
delivered in vain and until when it is held back, and which are on their way to the dead letters; a record of
which it says nothing is as if it had never been seen. Who holds a record is not kept: its lock ends with the
broker. What is passed over is not kept either: a restart passes over it again, however many offsets that are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.shares.chunks import Chunks
from headrace.broker.shares.ranges import Ranges
from headrace.broker.shares.states import NOT_HELD_BACK, Burial, Reason, Run, StoredState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


class Progress:
    """What is stored of one share group on one partition, with a note of what has changed."""

    __slots__ = ("archiving", "chunks", "deliveries", "done", "due", "start")

    def __init__(self, start: int, *, is_stored: bool = False) -> None:
        self.start = start
        self.done = Ranges()
        self.deliveries: dict[int, int] = {}
        """How often a record that is not done has been delivered in vain."""
        self.due: dict[int, int] = {}
        """Until when a record that was released is not delivered again, in milliseconds since 1970."""
        self.archiving: dict[int, Burial] = {}
        self.chunks = Chunks(start if is_stored else None)

    def is_settled(self, offset: int) -> bool:
        """Whether a record is for nobody any more: it is done, or becomes a dead letter."""
        return offset < self.start or offset in self.archiving or offset in self.done

    def is_untouched(self, first: int, last: int) -> bool:
        """Whether no record between the two is settled."""
        return not self.archiving and not self.due and next(self.done.between(first, last), None) is None

    def finish(self, first: int, last: int) -> None:
        """Be done with the records from `first` to `last`."""
        self.pass_over(first, last)
        self.chunks.touch(first, last)

    def pass_over(self, first: int, last: int) -> None:
        """Be done with offsets that a restart finds to be done by itself."""
        for known in (self.deliveries, self.due):
            for offset in known_between(known, first, last):
                del known[offset]
        self.done.add(first, last)

    def give_up(self, offset: int, deliveries: int, due_ms: int = 0) -> None:
        """Remember that a record was delivered so often, is not done, and is held back until `due_ms`."""
        self.deliveries[offset] = deliveries
        if due_ms:
            self.due[offset] = due_ms
        self.chunks.touch(offset, offset)

    def deliver(self, offset: int) -> None:
        """A record that was held back is delivered again."""
        if self.due.pop(offset, None) is not None:
            self.chunks.touch(offset, offset)

    def condemn(self, offset: int, burial: Burial) -> None:
        """Let a record become a dead letter."""
        self.archiving[offset] = burial
        self.deliveries.pop(offset, None)
        self.due.pop(offset, None)
        self.chunks.touch(offset, offset)

    def locate_burials(self, position: int) -> None:
        """Note where the topic of dead letters ends now, for those that were decided since the last time."""
        for offset, burial in self.archiving.items():
            if burial.position < 0:
                self.archiving[offset] = burial._replace(position=position)

    def advance(self) -> None:
        """Move the start behind what is done."""
        self.start = self.done.take_from(self.start)

    def move_start(self, start: int) -> None:
        """Be done with all below `start`."""
        self.pass_over(self.start, start - 1)
        # All chunks below are deleted; of the one that it now starts in, part of what is stored may be gone.
        self.chunks.touch(start, start)
        self.advance()

    def take_changes(self) -> tuple[int | None, Mapping[int, Sequence[Run]]]:
        """The new start, if it moved, and the chunks that changed, empty ones to be deleted."""
        return self.chunks.take(self.start, self._runs)

    def restore(self, chunk: int, runs: Iterable[Run]) -> None:
        """Take over what is stored of a chunk."""
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
                    if run.position > 0:
                        self.due[offset] = run.position

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
        if deliveries is None:
            return None
        return Run(
            offset,
            offset,
            StoredState.AVAILABLE,
            deliveries,
            Reason.NONE,
            self.due.get(offset, NOT_HELD_BACK),
        )


def known_between(known: Collection[int], first: int, last: int) -> list[int]:
    """The offsets of `known` between two others: a range may be far larger than what is known of it."""
    if last - first < len(known):
        return [offset for offset in range(first, last + 1) if offset in known]
    return [offset for offset in known if first <= offset <= last]
