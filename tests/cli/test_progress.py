"""The count on standard error, seen as a terminal sees it."""

import os
import pty
import subprocess

from tests.cli.terminal import DEADLINE_S, Terminal, wait_until


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
