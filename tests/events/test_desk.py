"""A partition in the hands of its handler: taken over, fenced, and rebuilt from the log."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, Fenced
from headrace.client.partition import TopicPartition
from headrace.client.records import read_records
from headrace.events import Limits, UnreadableHistory, writing
from headrace.events import desk as desk_module
from headrace.events.aggregate import Aggregate, aggregate_form
from headrace.events.command import Answer, Command, Reach
from headrace.events.desk import Desk, Letter
from headrace.events.history import read_history, rebuild
from headrace.events.log import extents
from headrace.events.recorded import write_event
from headrace.events.topics import StoreTopics, open_topics
from headrace.testing import EmbeddedBroker
from tests.events.cart import Added, Cart, CartCreated

CART = aggregate_form(Cart)
_numbers = itertools.count()


def add(key: str, product: str = "tea", *, command_id: str | None = None, quantity: int = 1) -> Letter:
    command = Command(
        aggregate_id=key,
        name="add",
        arguments={"product": product, "quantity": quantity},
        command_id=command_id or f"c{next(_numbers)}",
    )
    return Letter(command)


def by_topic(letter: Letter, offset: int = 0) -> Letter:
    """The same command from another process: its answer is stored in one transaction with the events."""
    return letter._replace(offset=offset)


def rejected(key: str) -> Letter:
    """A command that was meant for another version than any."""
    return Letter(replace(add(key).command, expected_version=99))


class Place:
    """One partition of a store of its own, and desks that are opened on it."""

    def __init__(self, bootstrap: str) -> None:
        self.cluster = Cluster.of(bootstrap)
        self.bootstrap = bootstrap
        self.topics: StoreTopics = open_topics(self.cluster, f"d{uuid.uuid4().hex[:8]}", "Cart", 1)
        self.clusters = [self.cluster]

    def open(self, **limits: int) -> Desk:
        self.clusters.append(Cluster.of(self.bootstrap))
        return Desk.open(self.clusters[-1], self.topics, 0, CART, Limits(**limits))

    def answers(self) -> list[tuple[Answer, Reach]]:
        """What the topic of answers holds."""
        where = TopicPartition(self.topics.answers, 0)
        records = read_records(self.cluster, where, *extents(self.cluster, [where])[where])
        return [Answer.read(each.value or b"") for each in records]

    def load(self, key: str) -> Any:
        return rebuild(self.cluster, self.topics, CART, key)


@pytest.fixture
def place(event_broker: EmbeddedBroker) -> Iterator[Place]:
    place = Place(event_broker.bootstrap)
    yield place
    for cluster in place.clusters:
        cluster.close()


def versions(answers: list[Answer]) -> list[int]:
    return [answer.version for answer in answers]


def test_commands_that_gathered_are_decided_one_after_the_other(place: Place) -> None:
    desk = place.open()
    assert versions(desk.handle([add("a"), add("b"), add("a")])) == [1, 1, 2]
    assert versions(desk.handle([add("a")])) == [3]
    assert place.load("a").items == {"tea": 3}


def test_a_handler_that_was_replaced_can_store_nothing(place: Place) -> None:
    old, rejecting, sending = place.open(), place.open(), place.open()
    sending.handle([add("a")])
    new = place.open()
    for stale, letter in (
        (old, add("a")),
        (rejecting, rejected("a")),
        (sending, by_topic(add("a"))),
    ):
        with pytest.raises(Fenced):
            stale.handle([letter])
    assert versions(new.handle([add("a")])) == [2]
    assert place.load("a").version == 2


def test_a_plain_batch_that_was_stored_counts_once_though_its_answer_was_lost(
    place: Place, monkeypatch: Any
) -> None:
    old = place.open()
    flush = old._writer.producer.flush

    def die() -> None:
        flush()
        raise BrokerUnreachable("here the process dies")

    monkeypatch.setattr(old._writer.producer, "flush", die)
    with pytest.raises(BrokerUnreachable):
        old.handle([add("a", command_id="kept"), add("a")])
    assert place.answers() == []
    assert versions(place.open().handle([add("a", command_id="kept"), add("a")])) == [1, 3]


def test_answers_that_only_events_tell_survive_any_number_of_moves(place: Place, monkeypatch: Any) -> None:
    monkeypatch.setattr(desk_module, "UNTOLD", 5)
    for number in range(40):
        desk = place.open(snapshot_events=7)
        desk.handle([add("a", command_id=f"first{number}"), add("b", command_id=f"second{number}")])
        again = [add("a", command_id=f"first{each}") for each in range(number + 1)]
        again += [add("b", command_id=f"second{each}") for each in range(number + 1)]
        assert versions(place.open().handle(again)) == [*range(1, number + 2), *range(1, number + 2)]
    assert 60 < len(place.answers()) <= 80


def test_a_command_with_several_events_is_answered_with_the_last_of_them(place: Place) -> None:
    many = Command(
        aggregate_id="a", name="add_all", arguments={"products": ["tea", "cup", "pot"]}, command_id="m"
    )
    assert versions(place.open().handle([Letter(many), add("a")])) == [3, 4]
    assert versions(place.open().handle([Letter(many)])) == [3]


def test_what_was_told_is_not_written_again(place: Place) -> None:
    desk = place.open()
    desk.handle([add("a", command_id="x")])
    where = TopicPartition(place.topics.events, 0)
    before = extents(place.cluster, [where])
    assert versions(desk.handle([add("a", command_id="x")])) == [1]
    assert (extents(place.cluster, [where]), place.answers()) == (before, [])
    assert versions(desk.handle([by_topic(add("a", command_id="x"))])) == [1]
    assert [answer.command_id for answer, _ in place.answers()] == ["x", "x"]


def test_a_handler_that_wrote_nothing_for_long_asks_the_coordinator(place: Place, monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "PLAIN_WITHIN_S", 0.0)
    desk = place.open()
    where = TopicPartition(place.topics.events, 0)
    first, end = extents(place.cluster, [where])[where]
    assert versions(desk.handle([add("a")])) == [1]
    assert extents(place.cluster, [where])[where] == (first, end + 2)  # the event, and the marker


def test_a_transaction_that_was_never_decided_does_not_count(place: Place, monkeypatch: Any) -> None:
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


def test_a_commit_whose_answer_was_lost_counts_once(place: Place, monkeypatch: Any) -> None:
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


def test_snapshots_bound_what_is_replayed(place: Place) -> None:
    desk = place.open(snapshot_events=20)
    for number in range(300):
        desk.handle([add(f"cart-{number % 7}")])
    again = place.open(snapshot_events=20)
    # Each transaction has a marker that takes an offset too, and each desk looks before it adds.
    assert 0 < again.replayed <= 20
    assert versions(again.handle([add(f"cart-{number}") for number in range(7)])) == [44] * 6 + [43]


def test_memory_is_bounded_and_nothing_is_forgotten(place: Place) -> None:
    desk = place.open(aggregates=3, snapshot_events=1000)
    for number in range(40):
        desk.handle([add(f"cart-{number % 10}", product=f"p{number}")])
    assert len(desk._shelf._near) == 3
    assert versions(desk.handle([add(f"cart-{number}") for number in range(10)])) == [5] * 10
    again = place.open(aggregates=3)
    assert versions(again.handle([add(f"cart-{number}") for number in range(10)])) == [6] * 10


def test_snapshots_of_other_code_are_not_used(place: Place) -> None:
    desk = place.open(snapshot_events=5)
    for _ in range(40):
        desk.handle([add("a")])

    class Doubling(Cart):
        def on_added(self, e: Added) -> None:
            self.items[e.product] = self.items.get(e.product, 0) + 2 * e.quantity

    form = aggregate_form(Doubling)
    other = Desk.open(place.cluster, place.topics, 0, form, Limits(snapshot_events=5))
    assert other.replayed == 40
    remove = Command(
        aggregate_id="a", name="remove", arguments={"product": "tea", "quantity": 80}, command_id="r"
    )
    assert other.handle([Letter(remove)])[0].kind == "done"


def test_an_aggregate_with_an_event_that_has_no_class_takes_no_commands(place: Place) -> None:
    place.open().handle([add("a")])

    class Cart(Aggregate):
        def create(self):
            yield CartCreated()

        def on_cart_created(self, e: CartCreated) -> None: ...

    desk = Desk.open(place.cluster, place.topics, 0, aggregate_form(Cart), Limits())
    create = [Command(aggregate_id=key, name="create", arguments={}, command_id=key) for key in "ab"]
    refused, done = desk.handle([Letter(command) for command in create])
    assert refused.kind == "unreadable"
    assert "'Added' is in the log, and Cart has no applier" in refused.reason
    assert done.kind == "done"


def test_progress_in_the_topic_of_commands_is_part_of_the_transaction(place: Place) -> None:
    desk = place.open()
    desk.handle([Letter(add("a").command, 4), Letter(add("a").command, 5)])
    desk.handle([add("a")])
    assert [reach.commands for _, reach in place.answers()] == [6, 6]
    assert place.open().commands == 6


def test_a_failure_is_not_remembered(place: Place) -> None:
    desk = place.open()
    bad = Command(aggregate_id="a", name="nothing", arguments={}, command_id="x")
    assert desk.handle([Letter(bad)])[0].kind == "failed"
    assert versions(desk.handle([add("a", command_id="x")])) == [1]


def test_history_tells_when_events_are_missing(place: Place) -> None:
    place.open().handle([add("a"), add("a")])
    assert [each.version for each in read_history(place.cluster, place.topics, "a")] == [1, 2]


def forge(place: Place, key: str, version: int) -> None:
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


def check_refused(desk: Desk) -> None:
    refused, done = desk.handle([add("a"), add("new")])
    assert (refused.kind, done.kind) == ("unreadable", "done")
    assert SECOND in refused.reason


def test_a_second_event_of_a_version_is_an_error(place: Place) -> None:
    place.open().handle([add("a"), add("a")])
    forge(place, "a", 2)
    with pytest.raises(UnreadableHistory, match=SECOND):
        place.load("a")
    check_refused(place.open())
    check_refused(place.open())


@pytest.mark.parametrize("events", [2, 3], ids=["the last event", "an earlier event"])
def test_a_second_event_of_a_version_that_a_snapshot_has_is_an_error(place: Place, events: int) -> None:
    desk = place.open(snapshot_events=1)
    for _ in range(events):
        desk.handle([add("a")])
    desk.handle([add("b")])  # with it goes the snapshot of the last event of "a"
    desk.handle([add("b")])
    assert place.open(snapshot_events=1).replayed <= 2
    forge(place, "a", 2)
    check_refused(place.open())
