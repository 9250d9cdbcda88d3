"""The output of commands: tables, confirmations, progress, and control characters in records."""

import json
import os
import pty
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli.output import print_json, print_table
from tests.cli.terminal import DEADLINE_S, Terminal, wait_until
from tests.feeds.view_writer import ViewWriter

HOSTILE = "tea\x1b]0;owned\x07\x9b2J\u202e"
ESCAPED = r"tea\x1b]0;owned\x07\x9b2J\u202e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    at: datetime
    span: timedelta


def test_columns_of_numbers_are_aligned_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [("a", 1), ("bbbbbb", 1000), ("c", None)])
    assert capsys.readouterr().out == "name    count\na           1\nbbbbbb   1000\nc           -\n"


def test_nothing_is_cut_off_when_no_terminal_limits_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [("x" * 500,)])
    assert "x" * 500 in capsys.readouterr().out


def test_names_are_not_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [("[red]:smile:[/red]",)])
    assert "[red]:smile:[/red]" in capsys.readouterr().out


def test_data_becomes_json_with_times_that_programs_read(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([Row(name="Zoë", at=datetime(2026, 1, 31, 12, tzinfo=UTC), span=timedelta(seconds=2))])
    out = capsys.readouterr().out
    assert json.loads(out) == [{"name": "Zoë", "at": "2026-01-31T12:00:00.000Z", "span": 2000}]
    assert "Zoë" in out


def answer(terminal: Terminal, *command: str, with_: bytes) -> tuple[int, bytes]:
    """Run a command on a terminal of its own and answer its question; the exit code and what it printed."""
    user_side, command_side = pty.openpty()
    process = terminal.start(*command, stdin=command_side)
    os.close(command_side)
    os.write(user_side, with_)
    out, _ = process.communicate(timeout=DEADLINE_S)
    os.close(user_side)
    return process.returncode, out


def test_yes_deletes(terminal: Terminal, topic: str) -> None:
    code, out = answer(terminal, "topic", "delete", topic, with_=b"y\n")
    assert (code, out) == (0, f"deleted topic {topic}\n".encode())


def test_no_keeps(terminal: Terminal, topic: str) -> None:
    assert answer(terminal, "topic", "delete", topic, with_=b"n\n") == (1, b"")
    assert topic in terminal.do("topic", "list").out


def test_an_empty_answer_keeps(terminal: Terminal, topic: str) -> None:
    assert answer(terminal, "topic", "delete", topic, with_=b"\n") == (1, b"")
    assert topic in terminal.do("topic", "list").out


def test_long_work_shows_a_count_to_whoever_watches(terminal: Terminal, topic: str) -> None:
    terminal_side, command_side = pty.openpty()
    writer = terminal.start("produce", topic, stdin=subprocess.PIPE, stderr=command_side)
    os.close(command_side)
    os.set_blocking(terminal_side, False)
    assert writer.stdin is not None
    stdin, seen = writer.stdin, bytearray()

    def counted() -> bool:
        stdin.write(b"record\n")
        stdin.flush()
        try:
            seen.extend(os.read(terminal_side, 1 << 16))
        except BlockingIOError:
            return False
        return b"records sent" in seen

    wait_until(counted, "a count on the terminal")
    stdin.close()
    assert writer.wait(DEADLINE_S) == 0
    os.close(terminal_side)


def test_short_work_shows_nothing(terminal: Terminal, topic: str) -> None:
    writer = terminal.start("produce", topic, stdin=subprocess.PIPE)
    _, err = writer.communicate(b"record\n", timeout=DEADLINE_S)
    assert err == b""


def in_a_pty(terminal: Terminal, *arguments: str) -> str:
    """What a command writes to standard output where that is a terminal."""
    near, far = pty.openpty()
    process = terminal.start(*arguments, stdout=far, stderr=subprocess.DEVNULL)
    os.close(far)
    with os.fdopen(near, "rb") as screen:
        shown = b""
        try:
            while piece := screen.read1(1 << 16):
                shown += piece
        except OSError:  # the other side is closed: the command has ended
            pass
    assert process.wait(100) == 0
    return shown.decode()


@pytest.fixture
def hostile_topic(terminal: Terminal, topic: str) -> str:
    line = json.dumps({"key": HOSTILE, "value": HOSTILE, "headers": {HOSTILE: HOSTILE}})
    terminal.do("produce", topic, "--json", stdin=line)
    return topic


def test_a_record_is_escaped_in_a_terminal_and_not_in_a_pipe(terminal: Terminal, hostile_topic: str) -> None:
    arguments = ("consume", hostile_topic, "--until", "end", "--format", r"%k %v %h\n")
    shown = in_a_pty(terminal, *arguments)
    assert shown.strip() == f"{ESCAPED} {ESCAPED} {ESCAPED}={ESCAPED}"
    assert terminal.do(*arguments).out == f"{HOSTILE} {HOSTILE} {HOSTILE}={HOSTILE}\n"


def test_json_escapes_every_control_character_and_stays_json(terminal: Terminal, hostile_topic: str) -> None:
    shown = in_a_pty(terminal, "consume", hostile_topic, "--until", "end", "--json")
    assert json.loads(shown)["value"] == HOSTILE
    assert not set(HOSTILE) & set("\x1b\x07\x9b\u202e") & set(shown)


def test_a_table_escapes_names_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name\x1b[1m"], [("a\nb\x1b[2J",)])
    assert capsys.readouterr().out == "name\\x1b[1m\na\\nb\\x1b[2J\n"


def test_an_error_message_cannot_carry_an_escape_sequence(terminal: Terminal) -> None:
    outcome = terminal.run("topic", "describe", "a\x1b[2J")
    assert outcome.code != 0
    assert "\x1b[2J" not in outcome.err
    assert "\\x1b[2J" in outcome.err


def test_the_rows_of_a_view_are_one_line_each(
    terminal: Terminal, bootstrap: str, new_name: Callable[[], str]
) -> None:
    shelf = ViewWriter(bootstrap, name=new_name())
    shelf.write_raw("a", b'{"id": "a\xc2\x9b2J",\n"n": 1}')
    shown = in_a_pty(terminal, "changes", shelf.name)
    assert shown.strip() == 'row    {"id": "a\\x9b2J", "n": 1}'
    (line,) = terminal.do("changes", shelf.name, "--json").lines
    assert json.loads(line)["row"]["n"] == 1
