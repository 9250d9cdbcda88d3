"""Messages across crashes: each arrives once, but for one whose answer was lost, which has the same id."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sinks import sending
from tests.sinks.mailbox import TAKEN, Mailbox
from tests.sinks.receiver import Receiver

KILLED_AT = (2, 5)
"""The messages, counted from 1 as they arrive, behind which the sender dies before it hears the answer."""


class Sender:
    """The process that sends, and its end."""

    def __init__(self, url: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", sending.__name__, url, str(folder)]
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """The code with which it ended; minus the number of the signal that ended it."""
        self._process = subprocess.Popen(self._command)
        return self._process.wait(100)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


@pytest.fixture(params=["webhook", "email"])
def server(request: pytest.FixtureRequest) -> Iterator[Receiver | Mailbox]:
    with Receiver() if request.param == "webhook" else Mailbox() as server:
        yield server


def test_a_killed_sender_repeats_only_messages_in_flight(server: Any, tmp_path: Path) -> None:
    sender = Sender(server.url, tmp_path)
    in_flight = []

    def behave(message: Any) -> Any:
        if len(server.ids) in KILLED_AT:
            in_flight.append(server.ids[-1])
            sender.kill()
        return TAKEN if isinstance(server, Mailbox) else 204

    server.behave = behave
    assert [sender.run() for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    arrived = Counter(server.ids)
    assert len(arrived) == 6
    assert {identity for identity, count in arrived.items() if count > 1} == set(in_flight)
    assert max(arrived.values()) == 2
    sending.main(server.url, str(tmp_path))  # the batch comes once more, and is known
    assert Counter(server.ids) == arrived
