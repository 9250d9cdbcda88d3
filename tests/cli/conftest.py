"""A terminal, and topics to use it on."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.cli.terminal import Terminal


@pytest.fixture
def terminal(bootstrap: str) -> Iterator[Terminal]:
    """A terminal whose commands go to the broker of this test."""
    terminal = Terminal(bootstrap)
    yield terminal
    terminal.close()


@pytest.fixture
def new_name() -> Callable[[], str]:
    """A function that makes names which no other test uses."""
    return lambda: f"n{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(terminal: Terminal, new_name: Callable[[], str]) -> str:
    """A topic of one partition, empty."""
    name = new_name()
    terminal.do("topic", "create", name, "--partitions", "1")
    return name


@pytest.fixture
def wide_topic(terminal: Terminal, new_name: Callable[[], str]) -> str:
    """A topic of three partitions, empty."""
    name = new_name()
    terminal.do("topic", "create", name, "--partitions", "3")
    return name
