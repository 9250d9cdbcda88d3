"""A partition in the hands of its handler: taken over, fenced, and rebuilt from the log."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, ProducerFenced
from headrace.client.fetch import read_records
from headrace.client.partition import TopicPartition
from headrace.events import Limits, UnreadableHistory, partition_processor
from headrace.events import partition_processor as processor_module
from headrace.events.aggregate import Aggregate, aggregate_schema
from headrace.events.commands import Command, CommandReply, ReplyRange
from headrace.events.event import write_event
from headrace.events.history import read_history, rebuild
from headrace.events.partition_processor import CommandEnvelope, PartitionProcessor
from headrace.events.topics import StoreTopics, offset_ranges, open_topics
from headrace.testing import EmbeddedBroker
from tests.events.cart import Added, Cart, CartCreated

CART = aggregate_schema(Cart)
_numbers = itertools.count()


def add(
    key: str, product: str = "tea", *, command_id: str | None = None, quantity: int = 1
) -> CommandEnvelope:
    command = Command(
        aggregate_id=key,
        name="add",
        arguments={"product": product, "quantity": quantity},
        command_id=command_id or f"c{next(_numbers)}",
    )
    return CommandEnvelope(command)


def by_topic(envelope: CommandEnvelope, offset: int = 0) -> CommandEnvelope:
    """The same command from another process: its reply is stored in one transaction with the events."""
    return envelope._replace(offset=offset)


def rejected(key: str) -> CommandEnvelope:
    """A command that was meant for another version than any."""
    return CommandEnvelope(replace(add(key).command, expected_version=99))


class Partition:
    """One partition of a store of its own, and processors that are opened on it."""

    def __init__(self, bootstrap: str) -> None:
        self.cluster = Cluster.of(bootstrap)
        self.bootstrap = bootstrap
        self.topics: StoreTopics = open_topics(self.cluster, f"d{uuid.uuid4().hex[:8]}", "Cart", 1)
        self.clusters = [self.cluster]

    def open(self, **limits: int) -> PartitionProcessor:
        self.clusters.append(Cluster.of(self.bootstrap))
        return PartitionProcessor.open(self.clusters[-1], self.topics, 0, CART, Limits(**limits))

    def replies(self) -> list[tuple[CommandReply, ReplyRange]]:
        """What the topic of replies holds."""
        where = TopicPartition(self.topics.replies, 0)
        records = read_records(self.cluster, where, *offset_ranges(self.cluster, [where])[where])
        return [CommandReply.read(each.value or b"") for each in records]

    def load(self, key: str) -> Any:
        return rebuild(self.cluster, self.topics, CART, key)


@pytest.fixture
def place(event_broker: EmbeddedBroker) -> Iterator[Partition]:
    place = Partition(event_broker.bootstrap)
    yield place
    for cluster in place.clusters:
        cluster.close()


def versions(replies: list[CommandReply]) -> list[int]:
    return [reply.version for reply in replies]


def test_commands_of_one_batch_are_decided_in_order(place: Partition) -> None:
    processor = place.open()
    assert versions(processor.handle([add("a"), add("b"), add("a")])) == [1, 1, 2]
    assert versions(processor.handle([add("a")])) == [3]
    assert place.load("a").items == {"tea": 3}


def test_a_replaced_handler_is_fenced(place: Partition) -> None:
    old, rejecting, sending = place.open(), place.open(), place.open()
    sending.handle([add("a")])
    new = place.open()
    for stale, envelope in (
        (old, add("a")),
        (rejecting, rejected("a")),
        (sending, by_topic(add("a"))),
    ):
        with pytest.raises(ProducerFenced):
            stale.handle([envelope])
    assert versions(new.handle([add("a")])) == [2]
    assert place.load("a").version == 2


def test_a_plain_batch_with_a_lost_response_is_stored_once(place: Partition, monkeypatch: Any) -> None:
    old = place.open()
    flush = old._writer.producer.flush

    def die() -> None:
        flush()
        raise BrokerUnreachable("here the process dies")

    monkeypatch.setattr(old._writer.producer, "flush", die)
    with pytest.raises(BrokerUnreachable):
        old.handle([add("a", command_id="kept"), add("a")])
    assert place.replies() == []
    assert versions(place.open().handle([add("a", command_id="kept"), add("a")])) == [1, 3]


def test_implied_replies_survive_any_number_of_takeovers(place: Partition, monkeypatch: Any) -> None:
    monkeypatch.setattr(processor_module, "MAX_IMPLIED_REPLIES", 5)
    for number in range(40):
        processor = place.open(snapshot_events=7)
        processor.handle([add("a", command_id=f"first{number}"), add("b", command_id=f"second{number}")])
        again = [add("a", command_id=f"first{each}") for each in range(number + 1)]
        again += [add("b", command_id=f"second{each}") for each in range(number + 1)]
        assert versions(place.open().handle(again)) == [*range(1, number + 2), *range(1, number + 2)]
    assert 60 < len(place.replies()) <= 80


def test_the_reply_has_the_version_of_the_last_event_of_a_command(place: Partition) -> None:
    many = Command(
        aggregate_id="a", name="add_all", arguments={"products": ["tea", "cup", "pot"]}, command_id="m"
    )
    assert versions(place.open().handle([CommandEnvelope(many), add("a")])) == [3, 4]
    assert versions(place.open().handle([CommandEnvelope(many)])) == [3]


def test_a_repeated_command_writes_nothing_unless_it_came_from_the_topic(place: Partition) -> None:
    processor = place.open()
    processor.handle([add("a", command_id="x")])
    where = TopicPartition(place.topics.events, 0)
    before = offset_ranges(place.cluster, [where])
    assert versions(processor.handle([add("a", command_id="x")])) == [1]
    assert (offset_ranges(place.cluster, [where]), place.replies()) == (before, [])
    assert versions(processor.handle([by_topic(add("a", command_id="x"))])) == [1]
    assert [reply.command_id for reply, _ in place.replies()] == ["x", "x"]


def test_a_handler_that_was_idle_for_long_uses_a_transaction(place: Partition, monkeypatch: Any) -> None:
    monkeypatch.setattr(partition_processor, "PLAIN_WITHIN_S", 0.0)
    processor = place.open()
    where = TopicPartition(place.topics.events, 0)
    first, end = offset_ranges(place.cluster, [where])[where]
    assert versions(processor.handle([add("a")])) == [1]
    assert offset_ranges(place.cluster, [where])[where] == (first, end + 2)  # the event, and the marker


def test_an_uncommitted_transaction_is_aborted_by_the_successor(place: Partition, monkeypatch: Any) -> None:
    old = place.open()
    old.handle([add("a")])

    def die() -> None:
        raise BrokerUnreachable("here the process dies")

    monkeypatch.setattr(old._writer.transaction, "commit", die)
    with pytest.raises(BrokerUnreachable):
        old.handle([by_topic(add("a", command_id="lost"))])
    new = place.open()
    assert versions(new.handle([add("a", command_id="lost"), add("a")])) == [2, 3]
    assert place.load("a").items == {"tea": 3}


def test_a_commit_with_a_lost_response_counts_once(place: Partition, monkeypatch: Any) -> None:
    old = place.open()
    commit = old._writer.transaction.commit

    def die() -> None:
        commit()
        raise BrokerUnreachable("here the process dies")

    monkeypatch.setattr(old._writer.transaction, "commit", die)
    with pytest.raises(BrokerUnreachable):
        old.handle([by_topic(add("a", command_id="kept"))])
    assert versions(place.open().handle([add("a", command_id="kept")])) == [1]
    assert place.load("a").version == 1


def test_snapshots_bound_what_is_replayed(place: Partition) -> None:
    processor = place.open(snapshot_events=20)
    for number in range(300):
        processor.handle([add(f"cart-{number % 7}")])
    again = place.open(snapshot_events=20)
    # Each transaction has a marker that takes an offset too, and each processor looks before it adds.
    assert 0 < again.replayed <= 20
    assert versions(again.handle([add(f"cart-{number}") for number in range(7)])) == [44] * 6 + [43]


def test_memory_is_bounded_without_losing_state(place: Partition) -> None:
    processor = place.open(aggregates=3, snapshot_events=1000)
    for number in range(40):
        processor.handle([add(f"cart-{number % 10}", product=f"p{number}")])
    assert len(processor._cache._hot) == 3
    assert versions(processor.handle([add(f"cart-{number}") for number in range(10)])) == [5] * 10
    again = place.open(aggregates=3)
    assert versions(again.handle([add(f"cart-{number}") for number in range(10)])) == [6] * 10


def test_snapshots_of_other_code_are_not_used(place: Partition) -> None:
    processor = place.open(snapshot_events=5)
    for _ in range(40):
        processor.handle([add("a")])

    class Doubling(Cart):
        def on_added(self, e: Added) -> None:
            self.items[e.product] = self.items.get(e.product, 0) + 2 * e.quantity

    schema = aggregate_schema(Doubling)
    other = PartitionProcessor.open(place.cluster, place.topics, 0, schema, Limits(snapshot_events=5))
    assert other.replayed == 40
    remove = Command(
        aggregate_id="a", name="remove", arguments={"product": "tea", "quantity": 80}, command_id="r"
    )
    assert other.handle([CommandEnvelope(remove)])[0].kind == "done"


def test_an_aggregate_with_an_event_of_an_unknown_class_refuses_commands(place: Partition) -> None:
    place.open().handle([add("a")])

    class Cart(Aggregate):
        def create(self):
            yield CartCreated()

        def on_cart_created(self, e: CartCreated) -> None: ...

    processor = PartitionProcessor.open(place.cluster, place.topics, 0, aggregate_schema(Cart), Limits())
    create = [Command(aggregate_id=key, name="create", arguments={}, command_id=key) for key in "ab"]
    refused, done = processor.handle([CommandEnvelope(command) for command in create])
    assert refused.kind == "unreadable"
    assert "'Added' is in the log, and Cart has no applier" in refused.reason
    assert done.kind == "done"


def test_the_position_in_the_topic_of_commands_is_part_of_the_transaction(place: Partition) -> None:
    processor = place.open()
    processor.handle([CommandEnvelope(add("a").command, 4), CommandEnvelope(add("a").command, 5)])
    processor.handle([add("a")])
    assert [covered.commands for _, covered in place.replies()] == [6, 6]
    assert place.open().next_command_offset == 6


def test_a_failure_is_not_cached(place: Partition) -> None:
    processor = place.open()
    bad = Command(aggregate_id="a", name="nothing", arguments={}, command_id="x")
    assert processor.handle([CommandEnvelope(bad)])[0].kind == "failed"
    assert versions(processor.handle([add("a", command_id="x")])) == [1]


def test_history_has_the_versions_in_order(place: Partition) -> None:
    place.open().handle([add("a"), add("a")])
    assert [each.version for each in read_history(place.cluster, place.topics, "a")] == [1, 2]


def forge(place: Partition, key: str, version: int) -> None:
    """Store an event as a handler would that decides on a state that is not the newest."""
    command = add(key, command_id=f"forged{next(_numbers)}").command
    event = Added(product="tea", quantity=1)
    record = write_event(
        place.topics.store, "Cart", command, version, 0, event, b'{"product":"tea","quantity":1}'
    )
    producer = Producer({"bootstrap.servers": place.bootstrap})
    producer.produce(
        place.topics.events, key=record.key, value=record.value, headers=list(record.headers), partition=0
    )
    assert producer.flush(100) == 0


SECOND = "has a second event of version 2, of command 'forged"


def check_refused(processor: PartitionProcessor) -> None:
    refused, done = processor.handle([add("a"), add("new")])
    assert (refused.kind, done.kind) == ("unreadable", "done")
    assert SECOND in refused.reason


def test_a_second_event_of_a_version_is_an_error(place: Partition) -> None:
    place.open().handle([add("a"), add("a")])
    forge(place, "a", 2)
    with pytest.raises(UnreadableHistory, match=SECOND):
        place.load("a")
    check_refused(place.open())
    check_refused(place.open())


@pytest.mark.parametrize("events", [2, 3], ids=["the last event", "an earlier event"])
def test_a_second_event_of_a_version_that_a_snapshot_has_is_an_error(place: Partition, events: int) -> None:
    processor = place.open(snapshot_events=1)
    for _ in range(events):
        processor.handle([add("a")])
    processor.handle([add("b")])  # with it goes the snapshot of the last event of "a"
    processor.handle([add("b")])
    assert place.open(snapshot_events=1).replayed <= 2
    forge(place, "a", 2)
    check_refused(place.open())
