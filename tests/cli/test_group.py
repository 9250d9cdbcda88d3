from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.terminal import DEADLINE_S, Terminal, interrupt, wait_until

NewName = Callable[[], str]


@pytest.fixture
def group(terminal: Terminal, topic: str, new_name: NewName) -> str:
    """A group that has read four of the ten records of `topic`."""
    name = new_name()
    terminal.do("produce", topic, stdin="".join(f"{number}\n" for number in range(10)))
    terminal.do("consume", topic, "--group", name, "-n", "4")
    return name


def offsets(terminal: Terminal, group: str) -> list[tuple[int | None, int, int]]:
    partitions = terminal.do("group", "describe", group, "--json").json["partitions"]
    return [(partition["committed"], partition["end"], partition["lag"]) for partition in partitions]


def test_groups_are_listed_with_their_state(terminal: Terminal, group: str) -> None:
    assert {"group": group, "state": "empty", "type": "classic"} in terminal.do(
        "group", "list", "--json"
    ).json
    assert [group, "empty", "classic"] in [line.split() for line in terminal.do("group", "list").lines]


def test_lag_is_what_is_left_to_read(terminal: Terminal, topic: str, group: str) -> None:
    assert offsets(terminal, group) == [(4, 10, 6)]
    lines = terminal.do("group", "describe", group).lines
    assert lines[0] == f"group {group}: empty (classic), lag 6"
    assert [topic, "0", "4", "10", "6", "-"] in [line.split() for line in lines]


def test_records_that_are_gone_are_not_left_to_read(terminal: Terminal, topic: str, group: str) -> None:
    admin = AdminClient({"bootstrap.servers": terminal.bootstrap})
    (future,) = admin.delete_records([TopicPartition(topic, 0, 7)]).values()
    assert future.result(DEADLINE_S).low_watermark == 7
    assert offsets(terminal, group) == [(4, 10, 3)]


def test_members_are_described_with_what_they_read(terminal: Terminal, topic: str, group: str) -> None:
    member = terminal.start("consume", topic, "--group", group)
    wait_until(lambda: offsets(terminal, group) == [(10, 10, 0)], "the member to catch up")
    description = terminal.do("group", "describe", group, "--json").json
    assert description["state"] == "stable"
    (described,) = description["members"]
    assert described["client"] == "headrace"
    assert described["partitions"] == [f"{topic}/0"]
    assert description["partitions"][0]["member"] == described["member"]
    assert described["member"] in terminal.do("group", "describe", group).out
    interrupt(member)


@pytest.mark.parametrize(
    ("to", "committed"), [("start", 0), ("end", 10), ("7", 7), ("-1h", 0), ("2100-01-01", 10)]
)
def test_seek_moves_a_group(terminal: Terminal, topic: str, group: str, to: str, committed: int) -> None:
    moves = terminal.do("group", "seek", group, "--topic", topic, "--to", to, "--json").json
    assert moves == [{"topic": topic, "partition": 0, "before": 4, "after": committed}]
    assert offsets(terminal, group) == [(committed, 10, 10 - committed)]
    read = terminal.do("consume", topic, "--group", group, "--until", "end").lines
    assert read == [str(number) for number in range(committed, 10)]


def test_a_dry_run_changes_nothing(terminal: Terminal, topic: str, group: str) -> None:
    outcome = terminal.do("group", "seek", group, "--to", "start", "--dry-run")
    assert outcome.lines[1].split() == [topic, "0", "4", "→", "0"]
    assert "nothing was changed" in outcome.err
    assert offsets(terminal, group) == [(4, 10, 6)]


def test_seek_can_move_one_partition(terminal: Terminal, wide_topic: str, new_name: NewName) -> None:
    name = new_name()
    terminal.do("group", "seek", name, "--topic", wide_topic, "--to", "start")
    terminal.do("produce", wide_topic, "--partition", "1", stdin="a\n")
    moves = terminal.do("group", "seek", name, "--partition", "1", "--to", "end", "--json").json
    assert moves == [{"topic": wide_topic, "partition": 1, "before": 0, "after": 1}]


def test_an_active_group_cannot_be_moved_or_deleted(terminal: Terminal, topic: str, group: str) -> None:
    member = terminal.start("consume", topic, "--group", group)
    wait_until(lambda: offsets(terminal, group) == [(10, 10, 0)], "the member to catch up")
    for command in (
        ["seek", group, "--to", "start"],
        ["seek", group, "--to", "start", "--dry-run"],
        ["delete", group, "--yes"],
    ):
        outcome = terminal.run("group", *command)
        assert outcome.code == 1
        assert "is active (headrace at 127.0.0.1)" in outcome.err
        assert "Stop them" in outcome.err
    interrupt(member)
    terminal.do("group", "seek", group, "--to", "start")


def test_a_group_that_read_nothing_must_be_told_a_topic(terminal: Terminal, new_name: NewName) -> None:
    outcome = terminal.run("group", "seek", new_name(), "--to", "start")
    assert outcome.code == 2
    assert "--topic" in outcome.err


def test_an_offset_out_of_range_is_refused(terminal: Terminal, group: str) -> None:
    outcome = terminal.run("group", "seek", group, "--to", "11")
    assert outcome.code == 1
    assert "has no offset 11, but 0 to 10" in outcome.err
    assert offsets(terminal, group) == [(4, 10, 6)]


def test_a_deleted_group_is_gone(terminal: Terminal, group: str) -> None:
    assert terminal.run("group", "delete", group).code == 2
    assert terminal.do("group", "delete", group, "--yes").out == f"deleted group {group}\n"
    assert group not in terminal.do("group", "list").out


def test_a_typo_in_a_group_gets_a_suggestion(terminal: Terminal, group: str) -> None:
    for command in (["describe"], ["delete", "--yes"]):
        outcome = terminal.run("group", *command, group[:-1])
        assert outcome.code == 1
        assert f"Did you mean '{group}'?" in outcome.err
