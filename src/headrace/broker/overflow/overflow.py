"""The guards of all partitions that have a bound, and the producers that wait at one.

A batch that waits is a copy in the broker's memory, so that there is a limit to all of them together; beyond
it producers are told at once to try again. Whatever makes room lets the line of a partition move: a commit,
the end of a group or of its offsets, DeleteRecords, retention, other settings of the topic.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.errors import error_code
from headrace.broker.overflow.bound import Policy, Terms
from headrace.broker.overflow.errors import WaitedInVain
from headrace.broker.overflow.guard import Guard
from headrace.broker.overflow.line import Waiting, answer_with
from headrace.broker.overflow.positions import GroupPositions
from headrace.protocol.produce import PartitionResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.clock import Clock
    from headrace.broker.groups.records import OffsetKey
    from headrace.broker.offsets import Offsets
    from headrace.broker.partition import Partition
    from headrace.broker.shares import ShareGroupCoordinator
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.topics import Topic, Topics

HELD_BYTES: Final = 128 * 2**20
"""Batches that may wait for room at a time, of all producers together."""

Answer = asyncio.Future[PartitionResult]


class Overflow:
    """What happens at the bounds of topics."""

    def __init__(self, topics: Topics, offsets: Offsets, shares: ShareGroupCoordinator, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock
        self._positions = GroupPositions(offsets, shares, topics)
        self._held_bytes = 0
        self._is_draining = False
        for topic in topics:
            self.watch(topic)
        topics.follow(self.watch)
        offsets.watch(self._committed)
        shares.watch(self._shared)

    def watch(self, topic: Topic) -> None:
        """Give each partition of a topic the guard that its settings ask for, and let lines move."""
        terms = Terms.of(topic.config)
        is_gone = self._topics.get(topic.name) is not topic
        for partition in topic.partitions:
            guard = partition.guard
            if terms.policy is Policy.BUFFER or is_gone:
                partition.guard = None
            elif guard is None:
                partition.guard = Guard(topic.name, partition.index, partition.log, terms, self._positions)
            if guard is not None:
                guard.change(terms)
                guard.line.move()

    def made_room(self, partition: Partition) -> None:
        """The start of a partition has moved."""
        if partition.guard is not None:
            partition.guard.line.move()

    def _committed(self, key: OffsetKey) -> None:
        topic = self._topics.get(key.topic)
        partition = topic.partition(key.partition) if topic is not None else None
        if partition is not None:
            self._moved(partition, key.group_id)

    def _shared(self, share: SharePartition) -> None:
        self.made_room(share.partition)  # what all share groups of a queue are done with is gone
        self._moved(share.partition, share.key.group)

    def _moved(self, partition: Partition, group_id: str) -> None:
        guard = partition.guard
        if guard is not None and group_id in guard.terms.groups:
            guard.look_again()
            if guard.line:
                # Not now: who commits many offsets at once is first let to do so.
                self._clock.call_later(0, guard.line.move)

    # ---------------------------------------------------------------- waiting

    def hold(
        self, guard: Guard, attempt: Callable[[], PartitionResult], *, records: int, size: int, wait_ms: int
    ) -> Answer:
        """The answer to a producer whose batch waits for room, at most `wait_ms` and as the topic says."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if self._is_draining or self._held_bytes + size > HELD_BYTES:
            answer.set_result(self._refuse(guard, records))
            return answer
        self._held_bytes += size
        waiting = Waiting(attempt, answer, records)
        guard.line.add(waiting)

        def give_up() -> None:
            if answer.done():  # in the same turn of the loop, so that the timer could not be stopped
                return
            for each in guard.line.leave(waiting):
                answer_with(each.answer, self._refuse(guard, each.records))

        timer = self._clock.call_later(min(wait_ms, guard.terms.timeout_ms), give_up)

        def end(_: Answer) -> None:
            timer.cancel()
            self._held_bytes -= size

        answer.add_done_callback(end)
        return answer

    def _refuse(self, guard: Guard, records: int) -> PartitionResult:
        guard.counts.timed_out_records += records
        fault = WaitedInVain(f"{guard.explain()}: waited in vain for room, try again")
        return PartitionResult(guard.index, error_code(fault), message=str(fault))

    def drain(self) -> None:
        """Send away everybody who waits or comes: the broker stops."""
        self._is_draining = True
        for topic in self._topics:
            for partition in topic.partitions:
                if (guard := partition.guard) is not None:
                    guard.line.dissolve(PartitionResult(guard.index, error_code(WaitedInVain("stopping"))))
