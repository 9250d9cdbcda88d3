"""Fetch sessions: what a consumer names once, the broker remembers."""

from collections.abc import Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.fetch_sessions import FetchSessionError, FetchSessions
from headrace.protocol.fetch import FetchRequest, PartitionFetch, TopicFetch
from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import DELETE_TOPICS, WireClient, batch_of

OPEN, CLOSE = 0, -1


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        client.create_topic("orders")
        client.create_topic("cups")
        yield client


def names_of(answer: Any) -> list[str]:
    """The topics that an answer speaks of."""
    return [topic.topic for topic in answer.responses]


def open_session(client: WireClient, *topics: str) -> int:
    """The id of a session on the first partition of these topics."""
    answer = client.fetch({(topic, 0): 0 for topic in topics}, session=(0, OPEN))
    assert sorted(names_of(answer)) == sorted(topics)
    assert answer.session_id > 0
    return int(answer.session_id)


def test_a_full_fetch_opens_a_session_and_tells_of_every_partition(client: WireClient) -> None:
    assert open_session(client, "orders", "cups") > 0


def test_an_incremental_fetch_tells_of_news_only(client: WireClient) -> None:
    session = open_session(client, "orders", "cups")
    assert names_of(client.fetch({}, session=(session, 1))) == []
    client.produce("cups", batch_of(b"tea"))
    assert names_of(client.fetch({}, session=(session, 2))) == ["cups"]


def test_records_are_sent_again_until_the_consumer_moves_its_offset(client: WireClient) -> None:
    session = open_session(client, "orders")
    client.produce("orders", batch_of(b"tea"))
    assert names_of(client.fetch({}, session=(session, 1))) == ["orders"]
    assert names_of(client.fetch({}, session=(session, 2))) == ["orders"]
    assert names_of(client.fetch({("orders", 0): 1}, session=(session, 3))) == []


def test_a_partition_that_is_added_is_told_of_once(client: WireClient) -> None:
    session = open_session(client, "orders")
    assert names_of(client.fetch({("cups", 0): 0}, session=(session, 1))) == ["cups"]
    assert names_of(client.fetch({}, session=(session, 2))) == []


def test_a_forgotten_partition_is_never_told_of_again(client: WireClient) -> None:
    session = open_session(client, "orders", "cups")
    client.fetch({}, session=(session, 1), forgotten=[("cups", 0)])
    client.produce("cups", batch_of(b"tea"))
    assert names_of(client.fetch({}, session=(session, 2))) == []


def test_a_deleted_topic_is_told_of_until_it_is_forgotten(client: WireClient) -> None:
    session = open_session(client, "orders")
    client.ask(DELETE_TOPICS, 5, topic_names=["orders"], timeout=1000)
    for epoch in (1, 2):
        (topic,) = client.fetch({}, session=(session, epoch)).responses
        assert topic.partitions[0].error_code is ErrorCode.unknown_topic_or_partition
    assert names_of(client.fetch({}, session=(session, 3), forgotten=[("orders", 0)])) == []


def test_a_wrong_epoch_is_refused_and_the_session_goes_on(client: WireClient) -> None:
    session = open_session(client, "orders")
    refused = client.fetch({}, session=(session, 7))
    assert (refused.error_code, refused.responses) == (ErrorCode.invalid_fetch_session_epoch, ())
    assert client.fetch({}, session=(session, 1)).error_code is ErrorCode.none


def test_an_unknown_session_is_refused(client: WireClient) -> None:
    refused = client.fetch({}, session=(12345, 1))
    assert (refused.error_code, refused.session_id) == (ErrorCode.fetch_session_id_not_found, 0)


def test_a_closed_session_is_unknown(client: WireClient) -> None:
    session = open_session(client, "orders")
    assert client.fetch({("orders", 0): 0}, session=(session, CLOSE)).session_id == 0
    assert client.fetch({}, session=(session, 1)).error_code is ErrorCode.fetch_session_id_not_found


def test_a_session_that_is_opened_again_takes_the_place_of_the_old(client: WireClient) -> None:
    session = open_session(client, "orders")
    again = client.fetch({("cups", 0): 0}, session=(session, OPEN)).session_id
    assert again not in (0, session)
    assert client.fetch({}, session=(session, 1)).error_code is ErrorCode.fetch_session_id_not_found


def test_a_fetch_without_a_session_tells_of_every_partition_each_time(client: WireClient) -> None:
    for _ in range(2):
        answer = client.fetch({("orders", 0): 0})
        assert (answer.session_id, names_of(answer)) == (0, ["orders"])


def test_a_partition_that_had_its_turn_goes_to_the_back(client: WireClient) -> None:
    for topic in ("orders", "cups"):
        client.produce(topic, batch_of(bytes(1000)))
    full = {"max_bytes": 1, "partition_bytes": 2000}
    first = client.fetch({("orders", 0): 0, ("cups", 0): 0}, session=(0, OPEN), **full)
    second = client.fetch({}, session=(first.session_id, 1), **full)
    assert [with_records(first), with_records(second)] == [["orders"], ["cups"]]


def with_records(answer: Any) -> list[str]:
    return [topic.topic for topic in answer.responses if topic.partitions[0].records]


# ---------------------------------------------------------------- many sessions


def request(session_id: int, epoch: int, *partitions: int) -> FetchRequest:
    """A fetch of these partitions of one topic."""
    wanted = [PartitionFetch(index, -1, 0, 1000) for index in partitions]
    return FetchRequest(0, 0, 1000, False, session_id, epoch, [TopicFetch("orders", wanted)], [])


def test_the_session_that_was_quiet_longest_makes_room() -> None:
    sessions = FetchSessions(limit=2)
    first, second = (sessions.resolve(request(0, OPEN, 0)) for _ in range(2))
    assert first is not None
    assert second is not None
    sessions.resolve(request(first.id, 1))
    sessions.resolve(request(0, OPEN, 0))
    assert len(sessions) == 2
    assert sessions.resolve(request(first.id, 2)) is first
    with pytest.raises(FetchSessionError):
        sessions.resolve(request(second.id, 1))


def test_the_epoch_goes_from_its_largest_value_to_1() -> None:
    sessions = FetchSessions()
    session = sessions.resolve(request(0, OPEN, 0))
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resolve(request(session.id, 2**31 - 1))
    assert sessions.resolve(request(session.id, 1)) is session


def test_a_session_of_very_many_partitions_is_not_remembered() -> None:
    sessions = FetchSessions(partition_limit=10)
    assert sessions.resolve(request(0, OPEN, *range(11))) is None
    assert len(sessions) == 0


def test_a_session_that_grows_too_large_is_refused_and_forgotten() -> None:
    sessions = FetchSessions(partition_limit=10)
    session = sessions.resolve(request(0, OPEN, *range(10)))
    assert session is not None
    with pytest.raises(FetchSessionError):
        sessions.resolve(request(session.id, 1, 10))
    assert len(sessions) == 0


def test_sessions_make_room_for_a_large_one() -> None:
    sessions = FetchSessions(partition_limit=10)
    small = sessions.resolve(request(0, OPEN, *range(6)))
    large = sessions.resolve(request(0, OPEN, *range(8)))
    assert small is not None
    assert large is not None
    assert len(sessions) == 1
    with pytest.raises(FetchSessionError):
        sessions.resolve(request(small.id, 1))
