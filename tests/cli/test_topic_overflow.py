"""A topic with a bound on the command line; Apache Kafka has none, so that these run on Headrace alone."""

from collections.abc import Iterator

import pytest

from headrace.testing import EmbeddedBroker
from tests.cli.terminal import Terminal

BOUND = ("--config", "headrace.overflow=drop-newest", "--config", "headrace.overflow.records=2")


@pytest.fixture
def terminal(headrace_broker: EmbeddedBroker) -> Iterator[Terminal]:
    terminal = Terminal(headrace_broker.bootstrap)
    yield terminal
    terminal.close()


def test_describe_shows_how_full_a_topic_is_and_what_was_refused(terminal: Terminal) -> None:
    terminal.do("topic", "create", "jobs", *BOUND)
    terminal.do("produce", "jobs", stdin="a\nb\n")
    refused = terminal.run("produce", "jobs", stdin="c\n")
    assert refused.code == 1
    assert "POLICY_VIOLATION" in refused.err or "Policy violation" in refused.err
    (found,) = terminal.do("topic", "describe", "jobs", "--json").json["overflow"]
    assert (found["backlog_records"], found["full_percent"], found["refused_records"]) == (2, 100.0, 1)
    lines = [line.split() for line in terminal.do("topic", "describe", "jobs").lines]
    assert any(line[:4] == ["0", "100", "%", "2"] for line in lines)
    assert ["*", "headrace.overflow", "drop-newest"] in lines
    assert not any("headrace.overflow.status" in line for line in lines)


def test_a_topic_without_a_bound_says_nothing_of_one(terminal: Terminal) -> None:
    terminal.do("topic", "create", "jobs")
    assert terminal.do("topic", "describe", "jobs", "--json").json["overflow"] == []
    assert "refused" not in terminal.do("topic", "describe", "jobs").out


def test_a_contradiction_is_refused_with_the_way_out(terminal: Terminal) -> None:
    refused = terminal.run("topic", "create", "jobs", "--config", "headrace.overflow=drop-oldest")
    assert refused.code == 1
    assert "set headrace.overflow.bytes" in refused.err
