from collections.abc import Callable
from datetime import timedelta

import pytest

from headrace import queue
from headrace.testing.embedded import EmbeddedBroker
from tests.cli.terminal import Terminal

IDLE = timedelta(seconds=2)


@pytest.fixture
def group(terminal: Terminal, topic: str, new_name: Callable[[], str]) -> str:
    """A share group that has accepted three of five messages and rejected the other two."""
    name = new_name()
    terminal.do("produce", topic, stdin="".join(f"{number}\n" for number in range(5)))
    for message in queue(topic, group=name, broker=terminal.bootstrap, idle_timeout=IDLE):
        if message.offset in (1, 3):
            message.reject()
    return name


@pytest.fixture
def bootstrap(headrace_broker: EmbeddedBroker) -> str:
    """Dead letters are Headrace's own: there is no other broker to show this with."""
    return headrace_broker.bootstrap


def test_queues_are_listed_with_what_is_left_and_what_is_dead(
    terminal: Terminal, topic: str, group: str
) -> None:
    row = {"group": group, "topic": topic, "state": "empty", "members": 0, "left": 0, "dead": 2}
    assert row in terminal.do("queue", "list", "--json").json
    lines = terminal.do("queue", "list").lines
    assert [group, topic, "empty", "0", "0", "2"] in [line.split() for line in lines]


def test_a_queue_is_described_with_its_settings(terminal: Terminal, topic: str, group: str) -> None:
    found = terminal.do("queue", "describe", group, "--json").json
    assert found["partitions"] == [{"topic": topic, "partition": 0, "start": 5, "left": 0}]
    assert found["dead"] == {f"{topic}.{group}.dead": 2}
    assert found["settings"] == {"share.auto.offset.reset": "earliest"}
    assert terminal.do("queue", "describe", group).lines[0] == f"queue {group}: empty, 0 left"


def test_dead_letters_are_shown_with_their_reason(terminal: Terminal, group: str) -> None:
    (letter,) = terminal.do("queue", "dead", group, "--json", "-n", "1").json
    assert letter == {
        "offset": 0,
        "key": None,
        "value": "1",
        "reason": "Offset rejected by client.",
        "deliveries": 1,
        "partition": 0,
        "origin": 1,
    }


def test_dead_letters_go_back_once(terminal: Terminal, topic: str, group: str) -> None:
    first = terminal.do("queue", "redrive", group, "-n", "1", "--yes", "--json").json
    assert first == {"topic": topic, "group": group, "moved": 1, "left": 1}
    assert terminal.do("queue", "redrive", group, "--yes").lines == [
        f"1 dead letters went back to {topic}, 0 are left"
    ]
    assert terminal.do("queue", "dead", group, "--json").json == []
    again = queue(topic, group=group, broker=terminal.bootstrap, idle_timeout=IDLE)
    assert [message.value for message in again] == [b"1", b"3"]
    others = queue(topic, group=f"{group}-other", broker=terminal.bootstrap, idle_timeout=IDLE)
    assert len(list(others)) == 5


def test_a_queue_that_is_not_there_is_named_with_those_that_are_like_it(
    terminal: Terminal, group: str
) -> None:
    failed = terminal.run("queue", "describe", group[:-1])
    assert failed.code == 1
    assert f"Did you mean {group!r}?" in failed.err
