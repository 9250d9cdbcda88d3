"""Positions in a topic, and reading from them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.config import BrokerConfig
from headrace.cli.reader import END, START, Position, PositionKind, TopicConsumer, read_position
from headrace.cli.session import BrokerSession, broker_address
from headrace.client.errors import BrokerUnreachable
from headrace.storage.partition import PartitionLog
from headrace.testing import EmbeddedBroker
from tests.cli.terminal import Terminal, interrupt

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_start_and_end_are_words() -> None:
    assert (read_position("start"), read_position("end")) == (START, END)


def test_a_number_is_an_offset() -> None:
    assert read_position("007") == Position(kind=PositionKind.OFFSET, value=7)


@pytest.mark.parametrize(
    ("text", "hours"), [("-7200s", 2), ("-120m", 2), ("-2h", 2), ("-1d", 24), ("-1w", 168)]
)
def test_a_span_is_a_time_ago(text: str, hours: int) -> None:
    expected = int((NOON - timedelta(hours=hours)).timestamp() * 1000)
    assert read_position(text, now=NOON) == Position(kind=PositionKind.TIME, value=expected)


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 31, 12).astimezone()
    assert read_position("2026-01-31T12:00").value == int(local.timestamp() * 1000)


@given(st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_every_iso_time_is_read_to_the_millisecond(time: datetime) -> None:
    assert read_position(time.isoformat()).value == int(time.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "begin", "-5", "5m", "-5y", "-", "1.5", "²", "2026-13-01", "--5m"])
def test_anything_else_is_no_place(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position in a topic"):
        read_position(text)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_question_that_got_no_answer_is_asked_again(
    headrace_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A lost answer must not be taken for the end of the topic: the group would skip records."""
    search_time, left = PartitionLog.search_time, [failures]

    def search_time_or_fail(self: PartitionLog, *arguments: int) -> object:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("a fault of the broker, which closes the connection")
        return search_time(self, *arguments)

    monkeypatch.setattr(PartitionLog, "search_time", search_time_or_fail)
    terminal = Terminal(headrace_broker.bootstrap)
    terminal.do("topic", "create", "t")
    terminal.do("produce", "t", stdin="a\nb\n")
    (move,) = terminal.do("group", "seek", "g", "--topic", "t", "--to", "-1h", "--json").json
    assert (left, move["after"]) == ([0], 0)


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
    reader = TopicConsumer(session, "t", group=None, until=None)
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
