"""The backlog limiter against a model: a list of batches, and the position of each group.

The limiter remembers the room that it computed, reads sizes from segments and drops more than one batch at
once; the model counts everything again for each batch.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.broker.overflow.limiter import BacklogLimiter
from headrace.broker.overflow.policy import (
    BacklogLimit,
    BacklogPolicy,
    Backpressure,
    OverflowAction,
    TopicFull,
)
from headrace.storage.config import MEMORY_BYTES, TopicConfig
from headrace.storage.memory_log import MemoryLog
from tests.storage.batches import NOW, batch, open_log

GROUPS = ("mailer", "stock")


class Stored(NamedTuple):
    """One batch of the model."""

    base_offset: int
    count: int
    size: int

    @property
    def end(self) -> int:
        return self.base_offset + self.count


class ListedPositions(dict[str, int]):
    """Where each group stands: nowhere, as long as it has not said."""

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        assert (topic, partition) == ("orders", 0)
        return self.get(group_id)


class OverflowMachine(RuleBasedStateMachine):
    """One partition with a bound."""

    @initialize(
        action=st.sampled_from(
            [OverflowAction.DROP_OLDEST, OverflowAction.DROP_NEWEST, OverflowAction.BLOCK]
        ),
        records=st.sampled_from([-1, 5, 40]),
        size=st.sampled_from([-1, 500, 4000]),
        groups=st.sampled_from([(), GROUPS[:1], GROUPS]),
        in_memory=st.booleans(),
    )
    def begin(
        self, action: OverflowAction, records: int, size: int, groups: tuple[str, ...], in_memory: bool
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-overflow-"))
        if records == size == -1:
            records = 10
        self.limit = BacklogLimit(records=records, bytes=size)
        self.policy = BacklogPolicy(action=action, limit=self.limit, groups=groups)
        self.log = (
            MemoryLog(TopicConfig(headrace_storage="memory", retention_bytes=MEMORY_BYTES))
            if in_memory
            else open_log(self.folder, segment_bytes=1024, index_interval_bytes=200)
        )
        self.positions = ListedPositions()
        self.limiter = BacklogLimiter("orders", 0, self.log, self.policy, self.positions)
        self.stored: list[Stored] = []
        self.start = self.end = self.refused = self.dropped = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def first_that_counts(self) -> int:
        if not self.policy.groups:
            return self.start
        held = [self.positions[group] for group in self.policy.groups if group in self.positions]
        return max(self.start, min(held, default=self.end))

    def bytes_from(self, offset: int) -> int:
        return sum(each.size for each in self.stored if each.end > offset)

    def fits(self, count: int, size: int) -> bool:
        first = self.first_that_counts()
        if first >= self.end:
            return True
        records, used = self.end - first + count, self.bytes_from(first) + size
        return records <= self.limit.max_records and used <= self.limit.max_bytes

    @rule(count=st.integers(1, 12), filler=st.integers(0, 90))
    def produce(self, count: int, filler: int) -> None:
        sent = batch(*[b"." * filler] * count)
        size = len(sent)
        fits, before = self.fits(count, size), self.first_that_counts()
        if fits or self.policy.action is OverflowAction.DROP_OLDEST:
            assert self.log.append(sent, NOW, self.limiter.admit).base_offset == self.end
            self.stored.append(Stored(self.end, count, size))
            self.end += count
            self.check_dropped(before, is_needed=not fits)
            return
        expected = TopicFull if self.policy.action is OverflowAction.DROP_NEWEST else Backpressure
        with pytest.raises(expected, match="partition 0 of orders is full"):
            self.log.append(sent, NOW, self.limiter.admit)
        self.refused += count if expected is TopicFull else 0

    def check_dropped(self, first: int, *, is_needed: bool) -> None:
        """The oldest went if and only if they had to, and not many more than had to."""
        added = self.stored[-1]
        self.start, before = self.log.start_offset, self.start
        if not is_needed:
            assert self.start == before
            return
        self.dropped += max(self.start - first, 0)
        assert self.start <= added.base_offset
        kept = self.end - self.start
        if kept > added.count:
            assert kept <= self.limit.max_records
            assert self.bytes_from(self.start) <= self.limit.max_bytes
        # One part in sixteen may go beyond what must, and bytes go by whole batches.
        oldest = next(each for each in self.stored if each.end >= self.start)
        spare = self.bytes_from(self.start) + oldest.size
        is_tight_in_bytes = spare > self.limit.max_bytes - self.limit.max_bytes // 16
        is_tight_in_records = kept >= self.limit.max_records - self.limit.max_records // 16
        assert is_tight_in_bytes or is_tight_in_records or self.start == added.base_offset

    @rule(group=st.sampled_from(GROUPS), share=st.floats(0, 1))
    def commit(self, group: str, share: float) -> None:
        """A group says where it stands: further on, or back."""
        self.positions[group] = round(self.end * share)
        self.limiter.invalidate()

    @rule(group=st.sampled_from(GROUPS))
    def forget(self, group: str) -> None:
        """A group is deleted, or its offset expires."""
        self.positions.pop(group, None)
        self.limiter.invalidate()

    @precondition(lambda self: self.end > self.start)
    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start = self.start + round((self.end - self.start) * share)
        self.log.move_start(self.start)

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "limiter"):
            return
        assert self.log.end_offset == self.end
        assert self.limiter.counts.refused_records == self.refused
        assert self.limiter.counts.dropped_records == self.dropped
        found = self.limiter.backlog()
        assert found.size.records == max(self.end - self.first_that_counts(), 0)
        if self.limit.bytes >= 0 and found.size.records:
            assert found.size.bytes == self.bytes_from(self.first_that_counts())


def test_the_limiter_decides_as_a_list_would() -> None:
    run_state_machine_as_test(
        OverflowMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


@pytest.mark.soak
def test_the_limiter_decides_as_a_list_would_for_long() -> None:
    run_state_machine_as_test(
        OverflowMachine, settings=settings(max_examples=2_000, stateful_step_count=80, deadline=None)
    )
