"""Commands in the topic are taken one after the other, wherever librdkafka's position went."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.events import EventStore, ownership
from headrace.events.command import Answer, Command
from headrace.events.log import ends
from tests.events.cart import Cart


def send(store: EventStore, number: int) -> Future[Answer]:
    arguments = {"product": "tea", "quantity": 1}
    command = Command(aggregate_id="c", name="add", arguments=arguments, command_id=f"n{number}")
    return store._dispatches[Cart].submit(command, 20)


def await_end(store: EventStore, topic: str, end: int) -> None:
    place = TopicPartition(topic, 0)
    with Cluster.of(store.broker) as cluster:
        while ends(cluster, [place])[place] < end:
            pass


def do_between_polls(owner: Any, act: Callable[[], None]) -> None:
    """Have the thread that reads commands do something: its consumer is not for others."""
    done, usual = threading.Event(), owner._slow_down

    def once() -> None:
        owner._slow_down = usual
        act()
        done.set()

    owner._slow_down = once
    assert done.wait(100)


@pytest.mark.parametrize("astray", [1, 2], ids=["past one command", "past all of them"])
def test_a_command_that_was_passed_over_is_read_again(
    new_store: Callable[..., EventStore], monkeypatch: pytest.MonkeyPatch, astray: int
) -> None:
    monkeypatch.setattr(ownership, "LOOK_S", 0.1)
    owner = new_store(partitions=1)
    owner.execute(Cart, "c", "create")
    caller = new_store(owner.name, handles=False)
    caller.execute(Cart, "c", "add", product="tea", quantity=1)
    topic = f"{owner.name}.Cart.commands"
    reading: Any = owner._dispatches[Cart]._ownership
    begin = reading._next[0]
    do_between_polls(reading, lambda: reading._consumer.pause([Place(topic, 0)]))
    waiting = [send(caller, number) for number in range(2)]
    await_end(caller, topic, begin + 2)

    def go_astray() -> None:
        reading._consumer.seek(Place(topic, 0, begin + astray))
        reading._consumer.resume([Place(topic, 0)])

    do_between_polls(reading, go_astray)
    assert [each.result(100).version for each in waiting] == [3, 4]
