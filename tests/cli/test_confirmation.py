"""Destructive commands ask for confirmation at the terminal."""

import os
import pty

from tests.cli.terminal import DEADLINE_S, Terminal


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
