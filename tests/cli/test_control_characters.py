"""What a terminal would act on is escaped where people read, and left alone where programs read."""

import json
import os
import pty
import subprocess
from collections.abc import Callable

import pytest

from headrace.cli.output import print_table
from tests.cli.terminal import Terminal
from tests.feeds.view_writer import ViewWriter

HOSTILE = "tea\x1b]0;owned\x07\x9b2J\u202e"
ESCAPED = r"tea\x1b]0;owned\x07\x9b2J\u202e"


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
