"""Random commands, repeats, crashes and moves of a partition, compared with a plain dict."""

import itertools
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, ProducerFenced
from headrace.events import Limits
from headrace.events.aggregate import aggregate_schema
from headrace.events.commands import Command, CommandReply
from headrace.events.history import read_history
from headrace.events.partition_processor import CommandEnvelope, PartitionProcessor
from headrace.events.topics import open_topics
from headrace.testing import EmbeddedBroker, broker
from tests.events.stock import Stock

IDS = st.sampled_from(["a", "b", "c"])
LIMITS = Limits(aggregates=1, snapshot_events=4, replies=1000)
FORM = aggregate_schema(Stock)
Crash = st.sampled_from(["none", "none", "none", "before", "after"])


class StockMachine(RuleBasedStateMachine):
    """Desks come and go; the model knows what each aggregate is, and what each command was replied."""

    shared: EmbeddedBroker

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster.of(self.shared.bootstrap)
        self.clusters = [self.cluster]
        self.topics = open_topics(self.cluster, f"m{uuid.uuid4().hex[:8]}", "Stock", 1)
        self.quantities: dict[str, int] = {}
        self.versions: dict[str, int] = {}
        self.replies: dict[str, tuple[str, int]] = {}
        self.sent: list[Command] = []
        self.offsets = itertools.count()

    @initialize()
    def begin(self) -> None:
        self.processor = self.open()

    def open(self) -> PartitionProcessor:
        self.clusters.append(Cluster.of(self.shared.bootstrap))
        return PartitionProcessor.open(self.clusters[-1], self.topics, 0, FORM, LIMITS)

    def decide(self, command: Command) -> tuple[str, int]:
        """What the model says to a command, whose effect it takes over."""
        if command.command_id in self.replies:
            return self.replies[command.command_id]
        key, version = command.aggregate_id, self.versions.get(command.aggregate_id, 0)
        quantity = command.arguments["quantity"]
        if command.expected_version not in (None, version):
            reply = ("conflict", version)
        elif command.name == "take" and quantity > self.quantities.get(key, 0):
            reply = ("rejected", version)
        else:
            sign = -1 if command.name == "take" else 1
            self.quantities[key] = self.quantities.get(key, 0) + sign * quantity
            self.versions[key] = version + 1
            reply = ("done", version + 1)
        self.replies[command.command_id] = reply
        return reply

    def handle(self, commands: list[Command], crash: str, *, by_topic: bool) -> None:
        """Commands that are stored together; a crash before that leaves nothing, one after it everything."""
        envelopes = [
            CommandEnvelope(command, next(self.offsets) if by_topic else None) for command in commands
        ]
        if crash != "none":
            self.crash_at_the_end(after=crash == "after")
        try:
            replies = self.processor.handle(envelopes)
        except BrokerUnreachable:
            if crash == "after":
                for command in commands:
                    self.decide(command)
            self.processor = self.open()
            return
        assert [_short(reply) for reply in replies] == [self.decide(command) for command in commands]
        if crash != "none":  # there was nothing to store
            self.processor = self.open()

    def crash_at_the_end(self, *, after: bool) -> None:
        """Die before or after the last request, be it the commit of a transaction or a plain batch."""
        writer = self.processor._writer
        writer.transaction.commit = _dying(writer.transaction.commit, after=after)  # type: ignore[method-assign]
        writer.producer.flush = _dying(writer.producer.flush, after=after)  # type: ignore[method-assign]

    @rule(
        orders=st.lists(
            st.tuples(
                IDS, st.sampled_from(["take", "receive"]), st.integers(1, 3), st.none() | st.integers(0, 4)
            ),
            min_size=1,
            max_size=4,
        ),
        crash=Crash,
        by_topic=st.booleans(),
    )
    def command(self, orders: list[tuple[str, str, int, int | None]], crash: str, by_topic: bool) -> None:
        commands = [_command(*order) for order in orders]
        self.sent += commands
        self.handle(commands, crash, by_topic=by_topic)

    @rule(data=st.data(), crash=Crash, by_topic=st.booleans())
    def repeat(self, data: Any, crash: str, by_topic: bool) -> None:
        if self.sent:
            again = data.draw(st.lists(st.sampled_from(self.sent), min_size=1, max_size=3))
            self.handle(again, crash, by_topic=by_topic)

    @rule()
    def move(self) -> None:
        old, self.processor = self.processor, self.open()
        with pytest.raises(ProducerFenced):
            old.handle([CommandEnvelope(_command("a", "receive", 1, None))])

    @invariant()
    def nothing_is_negative(self) -> None:
        assert all(quantity >= 0 for quantity in self.quantities.values())

    def teardown(self) -> None:
        totals: dict[str, int] = {}
        seen: dict[str, int] = {}
        for each in read_history(self.cluster, self.topics, None):
            sign = -1 if each.type == "Taken" else 1
            totals[each.id] = totals.get(each.id, 0) + sign * each.fields["quantity"]
            seen[each.id] = seen.get(each.id, 0) + 1
            assert each.version == seen[each.id]
        assert (totals, seen) == (self.quantities, self.versions)
        for cluster in self.clusters:
            cluster.close()


def _dying(act: Callable[[], Any], *, after: bool) -> Callable[[], Any]:
    def die() -> None:
        if after:
            act()
        raise BrokerUnreachable("here the process dies")

    return die


def _short(reply: CommandReply) -> tuple[str, int]:
    return reply.kind, reply.version


def _command(key: str, name: str, quantity: int, expected: int | None) -> Command:
    arguments = {"quantity": quantity} | ({"order": "o"} if name == "take" else {})
    return Command(
        aggregate_id=key,
        name=name,
        arguments=arguments,
        command_id=uuid.uuid4().hex,
        expected_version=expected,
    )


def run(examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    with broker() as embedded:
        StockMachine.shared = embedded
        run_state_machine_as_test(
            StockMachine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None)
        )


def test_a_partition_behaves_as_the_model_says() -> None:
    run(examples=12, steps=15)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_partition_behaves_as_the_model_says_for_long() -> None:
    run(examples=150, steps=40)
