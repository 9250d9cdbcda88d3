"""A reader whose broker goes away: it waits for one that comes back, and gives up on one that does not."""

from collections.abc import Iterator

import pytest

from headrace.broker.config import BrokerConfig
from headrace.cli.reader import TopicReader
from headrace.cli.session import BrokerSession, broker_address
from headrace.client.errors import BrokerUnreachable
from headrace.testing import EmbeddedBroker
from tests.cli.terminal import Terminal, interrupt


@pytest.fixture
def terminal(headrace_broker: EmbeddedBroker) -> Iterator[Terminal]:
    """A terminal whose commands go to a private broker."""
    terminal = Terminal(headrace_broker.bootstrap)
    terminal.do("topic", "create", "t")
    terminal.do("produce", "t", stdin="one\n")
    yield terminal
    terminal.close()


def test_a_broker_that_restarts_is_waited_for(terminal: Terminal, headrace_broker: EmbeddedBroker) -> None:
    follower = terminal.start("consume", "t")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"one\n"
    port = int(headrace_broker.bootstrap.rpartition(":")[2])
    headrace_broker.stop()
    restarted = EmbeddedBroker(BrokerConfig(data=headrace_broker.config.data, port=port))
    try:
        terminal.do("produce", "t", stdin="two\n")
        assert follower.stdout.readline() == b"two\n"
        assert interrupt(follower) == (130, b"", b"")
    finally:
        restarted.stop()


def test_a_broker_that_stays_away_is_given_up(terminal: Terminal, headrace_broker: EmbeddedBroker) -> None:
    session = BrokerSession(broker_address(terminal.bootstrap), timeout_s=2)
    reader = TopicReader(session, "t", group=None, until=None)
    try:
        reader.assign({0: 0})
        batches = reader.batches()
        assert [message.value() for message in next(batches)] == [b"one"]
        headrace_broker.stop()
        with pytest.raises(BrokerUnreachable, match="connection refused"):
            next(batches)
    finally:
        reader.close()


def test_a_reader_sees_no_topic_being_made_by_reading_it(terminal: Terminal) -> None:
    assert terminal.run("consume", "absent").code == 1
    assert [listing["topic"] for listing in terminal.do("topic", "list", "--json").json] == ["t"]
