"""Offsets under arbitrary commits, transactions, deletions and restarts, against plain dictionaries."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.broker.groups import GroupSettings
from headrace.broker.groups.records import CommittedOffset
from headrace.broker.offsets import CommittedOffsets
from headrace.broker.state_log import MemoryStateLog, Producer
from headrace.protocol.wire import run_steps
from tests.broker.virtual_clock import VirtualClock

GROUPS = ("g", "h")
PLACES = tuple((topic, partition) for topic in ("t", "u") for partition in (0, 1))
PRODUCERS = (Producer(1, 0), Producer(2, 5))

groups = st.sampled_from(GROUPS)
entries = st.dictionaries(
    st.sampled_from(PLACES), st.integers(0, 99).map(lambda offset: CommittedOffset(offset=offset)), min_size=1
)


class OffsetsModel(RuleBasedStateMachine):
    """The model keeps every write in order; the expected state is computed from it after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.log = MemoryStateLog()
        self.offsets = CommittedOffsets(self.log, VirtualClock(), GroupSettings())
        self.writes: list[tuple[str, tuple[str, int], CommittedOffset, list[bool | None]]] = []
        self.open: dict[int, list[bool | None]] = {}

    @rule(group=groups, offsets=entries)
    def commit(self, group: str, offsets: dict[tuple[str, int], CommittedOffset]) -> None:
        self.offsets.commit(group, offsets)
        self.writes += [(group, where, offset, [True]) for where, offset in offsets.items()]

    @rule(group=groups, producer=st.sampled_from(PRODUCERS), offsets=entries)
    def add_to_a_transaction(
        self, group: str, producer: Producer, offsets: dict[tuple[str, int], CommittedOffset]
    ) -> None:
        self.offsets.add_pending(producer, group, offsets)
        fate = self.open.setdefault(producer.producer_id, [None])
        self.writes += [(group, where, offset, fate) for where, offset in offsets.items()]

    @rule(producer=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def end_a_transaction(self, producer: Producer, is_commit: bool) -> None:
        self.log.mark(producer, committed=is_commit)
        self.offsets.complete(producer.producer_id, committed=is_commit)
        self.open.pop(producer.producer_id, [None])[0] = is_commit

    @rule(group=groups, where=st.sampled_from(PLACES))
    def delete(self, group: str, where: tuple[str, int]) -> None:
        self.offsets.delete(group, [where])
        self.writes = [write for write in self.writes if write[:2] != (group, where)]

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_a_topic(self, topic: str) -> None:
        run_steps(self.offsets.delete_topic_steps(topic))
        self.writes = [write for write in self.writes if write[1][0] != topic]

    @rule()
    def restart(self) -> None:
        self.offsets = CommittedOffsets(self.log, VirtualClock(), GroupSettings())
        self.offsets.load()

    @invariant()
    def the_latest_write_that_counts_is_read(self) -> None:
        for group in GROUPS:
            expected = {where: offset for by, where, offset, fate in self.writes if by == group and fate[0]}
            assert self.offsets.of_group(group) == expected

    @invariant()
    def what_an_open_transaction_holds_is_unstable(self) -> None:
        held = {(group, where) for group, where, _, fate in self.writes if fate[0] is None}
        for group in GROUPS:
            for where in PLACES:
                assert self.offsets.is_pending(group, *where) == ((group, where) in held)


TestOffsets = OffsetsModel.TestCase
TestOffsets.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
