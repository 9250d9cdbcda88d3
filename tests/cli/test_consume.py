import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.cli.terminal import DEADLINE_S, Terminal, interrupt, wait_until

NewName = Callable[[], str]


@pytest.fixture
def three(terminal: Terminal, topic: str) -> str:
    """A topic of one partition with the records a, b and c, a second apart in time."""
    lines = [
        json.dumps({"key": f"k-{value}", "value": value, "timestamp": 1_700_000_000_000 + 1000 * number})
        for number, value in enumerate("abc")
    ]
    terminal.do("topic", "alter", topic, "--config", "retention.ms=-1")  # their times are long past
    terminal.do("produce", topic, "--json", "--header", "n:1", stdin="\n".join(lines))
    return topic


def test_values_are_printed_one_a_line(terminal: Terminal, three: str) -> None:
    assert terminal.do("consume", three, "--until", "end").out == "a\nb\nc\n"


def test_a_format_places_every_field(terminal: Terminal, three: str) -> None:
    layout = r"%t %p %o %k %v %h %T 100%% \\ \x41\t|\n"
    first = terminal.do("consume", three, "-n", "1", "--format", layout).out
    assert first == f"{three} 0 0 k-a a n=1 1700000000000 100% \\ A\t|\n"


def test_a_format_that_means_nothing_is_a_misuse(terminal: Terminal, three: str) -> None:
    for layout in ("%q", "\\q", "%", "\\"):
        outcome = terminal.run("consume", three, "--format", layout)
        assert outcome.code == 2
        assert "%v value" in outcome.err


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        ("start", "abc"),
        ("1", "bc"),
        ("3", ""),
        ("end", ""),
        ("2023-11-14T22:13:21Z", "bc"),
        ("2023-11-14T22:13:21.500+00:00", "c"),
        ("-1m", ""),
    ],
)
def test_reading_begins_where_it_is_told_to(
    terminal: Terminal, three: str, begin: str, expected: str
) -> None:
    assert "".join(terminal.do("consume", three, "--from", begin, "--until", "end").lines) == expected


@pytest.mark.parametrize(("until", "expected"), [("1", "a"), ("start", ""), ("2023-11-14T22:13:22Z", "ab")])
def test_reading_stops_where_it_is_told_to(terminal: Terminal, three: str, until: str, expected: str) -> None:
    assert "".join(terminal.do("consume", three, "--until", until).lines) == expected


def test_an_offset_that_is_not_there_is_refused_with_those_that_are(terminal: Terminal, three: str) -> None:
    outcome = terminal.run("consume", three, "--from", "4")
    assert outcome.code == 1
    assert "has no offset 4, but 0 to 3" in outcome.err


def test_a_place_that_is_no_place_is_a_misuse(terminal: Terminal, three: str) -> None:
    outcome = terminal.run("consume", three, "--from", "yesterday")
    assert outcome.code == 2
    assert "-5m" in outcome.err


def test_only_the_chosen_partitions_are_read(terminal: Terminal, wide_topic: str) -> None:
    for number in range(3):
        terminal.do("produce", wide_topic, "--partition", str(number), stdin=f"{number}\n")
    chosen = terminal.do(
        "consume", wide_topic, "--until", "end", "--partition", "0", "--partition", "2"
    ).lines
    assert sorted(chosen) == ["0", "2"]


def test_a_count_stops_in_the_middle_of_a_batch(terminal: Terminal, three: str) -> None:
    assert terminal.do("consume", three, "-n", "2").out == "a\nb\n"


def test_an_empty_topic_ends_at_once(terminal: Terminal, wide_topic: str) -> None:
    assert terminal.do("consume", wide_topic, "--until", "end").out == ""


def test_a_group_goes_on_where_it_was(terminal: Terminal, three: str, new_name: NewName) -> None:
    group = new_name()
    assert terminal.do("consume", three, "--group", group, "-n", "2").out == "a\nb\n"
    assert terminal.do("consume", three, "--group", group, "--until", "end").out == "c\n"
    assert terminal.do("consume", three, "--group", group, "--until", "end").out == ""
    assert terminal.do("group", "describe", group, "--json").json["lag"] == 0


def test_a_new_group_may_begin_at_the_end(terminal: Terminal, three: str, new_name: NewName) -> None:
    assert terminal.do("consume", three, "--group", new_name(), "--from", "end", "--until", "end").out == ""


def test_a_group_cannot_be_told_partitions_or_offsets(terminal: Terminal, three: str) -> None:
    assert terminal.run("consume", three, "--group", "g", "--partition", "0").code == 2
    seek = terminal.run("consume", three, "--group", "g", "--from", "1")
    assert seek.code == 2
    assert "headrace group seek g" in seek.err


def test_only_committed_records_are_read_unless_others_are_wanted(
    terminal: Terminal, topic: str, new_name: NewName
) -> None:
    writer = Producer({"bootstrap.servers": terminal.bootstrap, "transactional.id": new_name()})
    writer.init_transactions(DEADLINE_S)
    for value, end in ((b"committed", writer.commit_transaction), (b"aborted", writer.abort_transaction)):
        writer.begin_transaction()
        writer.produce(topic, value)
        writer.flush(DEADLINE_S)
        end(DEADLINE_S)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(DEADLINE_S)
    assert terminal.do("consume", topic, "--until", "end").lines == ["committed"]
    everything = terminal.do("consume", topic, "--until", "end", "--uncommitted").lines
    assert everything == ["committed", "aborted", "open"]
    writer.abort_transaction(DEADLINE_S)


def test_a_topic_is_followed_until_ctrl_c(terminal: Terminal, three: str) -> None:
    follower = terminal.start("consume", three, "--from", "end", "--format", r"%o %v\n")
    output = follower.stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    seen = bytearray()

    def arrived() -> bool:
        # The follower may have come to the end before or after any one of these.
        terminal.do("produce", three, stdin="more\n")
        seen.extend(output.read() or b"")
        return b"more\n" in seen

    wait_until(arrived, "the follower to print a new record")
    code, _, err = interrupt(follower)
    assert (code, err) == (130, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_group_that_is_stopped_has_committed_what_it_printed(
    terminal: Terminal, three: str, new_name: NewName, number: int
) -> None:
    group = new_name()
    member = terminal.start("consume", three, "--group", group)
    assert member.stdout is not None
    assert member.stdout.readline() == b"a\n"
    code, _, err = interrupt(member, number)
    assert (code, err) == (130, b"")
    description = terminal.do("group", "describe", group, "--json").json
    assert (description["state"], description["lag"]) == ("empty", 0)


def test_a_reader_that_leaves_the_pipe_ends_it_quietly(terminal: Terminal, topic: str) -> None:
    terminal.do("produce", topic, stdin="a line of some length\n" * 20_000)
    reader = terminal.start("consume", topic)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"a line of some length\n"
    reader.stdout.close()
    assert reader.wait(DEADLINE_S) == 0
    assert reader.stderr is not None
    assert reader.stderr.read() == b""


def test_many_records_come_out_complete_and_in_order(terminal: Terminal, topic: str) -> None:
    expected = "".join(f"{number}\n" for number in range(50_000))
    terminal.do("produce", topic, "--compression", "lz4", stdin=expected)
    assert terminal.do("consume", topic, "--until", "end").out == expected


def test_the_output_is_the_same_in_a_pipe(terminal: Terminal, three: str) -> None:
    out, err = terminal.start("consume", three, "--until", "end").communicate(timeout=DEADLINE_S)
    assert (out, err) == (b"a\nb\nc\n", b"")


def test_a_full_disk_is_explained(terminal: Terminal, three: str) -> None:
    with Path("/dev/full").open("wb") as full:
        process = terminal.start("consume", three, "--until", "end", stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert b"No space left" in err
    assert b"Traceback" not in err
