"""A topic with a bound on the command line; Apache Kafka has none, so that these run on Headrace alone."""

from collections.abc import Callable, Iterator

import pytest

from headrace.testing import EmbeddedBroker
from tests.cli.terminal import Terminal

NewName = Callable[[], str]


def test_a_created_topic_is_listed_with_its_partitions(terminal: Terminal, new_name: NewName) -> None:
    name = new_name()
    assert terminal.do("topic", "create", name, "--partitions", "4").out == f"created topic {name}\n"
    listed = terminal.do("topic", "list", "--json").json
    assert {"topic": name, "partitions": 4, "replicas": 1} in listed
    assert any(line.split() == [name, "4", "1"] for line in terminal.do("topic", "list").lines)


def test_creating_a_topic_twice_fails_unless_that_is_allowed(terminal: Terminal, topic: str) -> None:
    again = terminal.run("topic", "create", topic)
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert "nothing changed" in terminal.do("topic", "create", topic, "--if-not-exists").err


def test_topics_of_the_broker_and_of_jobs_are_listed_only_on_demand(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, stdin="a\n")
    terminal.do("consume", topic, "--group", f"g-{topic}", "-n", "1")  # makes the topic of offsets
    terminal.do("topic", "create", "headrace.jobs", "--if-not-exists")
    names = ("__consumer_offsets", "headrace.jobs")
    assert not any(line.startswith(names) for line in terminal.do("topic", "list").lines)
    for name in names:
        assert any(line.startswith(name) for line in terminal.do("topic", "list", "--all").lines)


def test_describe_shows_offsets_and_sizes(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, stdin="a\nb\nc\n")
    description = terminal.do("topic", "describe", topic, "--json").json
    (partition,) = description["partitions"]
    assert (partition["partition"], partition["start"], partition["end"]) == (0, 0, 3)
    assert partition["leader"] in partition["replicas"]
    assert partition["size_bytes"] > 60  # a batch's header alone takes 61 bytes
    heading, row = terminal.do("topic", "describe", topic).lines[:2]
    assert heading.split() == ["partition", "leader", "replicas", "in", "sync", "start", "end", "size"]
    assert row.split()[4:6] == ["0", "3"]


def test_settings_that_differ_from_the_default_are_marked(terminal: Terminal, new_name: NewName) -> None:
    name = new_name()
    terminal.do(
        "topic", "create", name, "--config", "retention.ms=1234567", "--config", "cleanup.policy=compact"
    )
    lines = [line.split() for line in terminal.do("topic", "describe", name).lines]
    assert ["*", "retention.ms", "1234567"] in lines
    assert ["*", "cleanup.policy", "compact"] in lines
    assert not any("segment.bytes" in line for line in lines)
    every = [line.split() for line in terminal.do("topic", "describe", name, "--configs").lines]
    assert any(line[:1] == ["segment.bytes"] for line in every)


def test_alter_sets_and_unsets_settings(terminal: Terminal, topic: str) -> None:
    terminal.do(
        "topic", "alter", topic, "--config", "retention.ms=1000", "--config", "max.message.bytes=2000"
    )
    terminal.do("topic", "alter", topic, "--unset", "retention.ms")
    configs = {
        entry["name"]: entry for entry in terminal.do("topic", "describe", topic, "--json").json["configs"]
    }
    assert configs["max.message.bytes"] == {"name": "max.message.bytes", "value": "2000", "is_default": False}
    assert configs["retention.ms"]["is_default"] is True


def test_alter_adds_partitions(terminal: Terminal, topic: str) -> None:
    terminal.do("topic", "alter", topic, "--partitions", "3")
    assert {"topic": topic, "partitions": 3, "replicas": 1} in terminal.do("topic", "list", "--json").json
    fewer = terminal.run("topic", "alter", topic, "--partitions", "2")
    assert fewer.code == 1
    assert "raise topic" in fewer.err


def test_alter_without_a_change_is_a_misuse(terminal: Terminal, topic: str) -> None:
    outcome = terminal.run("topic", "alter", topic)
    assert outcome.code == 2
    assert "--config NAME=VALUE" in outcome.err


def test_a_setting_that_does_not_exist_is_refused_by_the_broker(terminal: Terminal, topic: str) -> None:
    outcome = terminal.run("topic", "alter", topic, "--config", "no.such.setting=1")
    assert outcome.code == 1
    assert "no.such.setting" in outcome.err


def test_a_setting_without_a_value_is_a_misuse(terminal: Terminal, topic: str) -> None:
    outcome = terminal.run("topic", "alter", topic, "--config", "retention.ms")
    assert outcome.code == 2
    assert "NAME=VALUE" in outcome.err


def test_delete_removes_the_topic(terminal: Terminal, topic: str, wide_topic: str) -> None:
    assert terminal.do("topic", "delete", topic, wide_topic, "--yes").lines == [
        f"deleted topic {topic}",
        f"deleted topic {wide_topic}",
    ]
    names = {listing["topic"] for listing in terminal.do("topic", "list", "--json").json}
    assert names.isdisjoint({topic, wide_topic})


def test_delete_without_anyone_to_ask_wants_yes(terminal: Terminal, topic: str) -> None:
    outcome = terminal.run("topic", "delete", topic)
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert topic in terminal.do("topic", "list").out


def test_a_typo_in_a_topic_gets_a_suggestion(terminal: Terminal, topic: str) -> None:
    for command in (["topic", "describe"], ["topic", "delete", "--yes"], ["consume"], ["produce"]):
        outcome = terminal.run(*command, topic[:-1])
        assert outcome.code == 1
        assert f"Did you mean '{topic}'?" in outcome.err
    assert {name["topic"] for name in terminal.do("topic", "list", "--json").json} >= {topic}


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
