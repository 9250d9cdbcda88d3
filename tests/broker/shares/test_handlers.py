"""The APIs of share groups, with valid and invalid requests."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from headrace.testing.embedded import EmbeddedBroker
from tests.broker.wire_client import METADATA, WireClient, batch_of

HEARTBEAT, DESCRIBE, FETCH, ACKNOWLEDGE = 76, 77, 78, 79
DESCRIBE_OFFSETS, ALTER_OFFSETS, DELETE_OFFSETS = 90, 91, 92
LIST_GROUPS, DELETE_GROUPS, JOIN_GROUP, INCREMENTAL_ALTER_CONFIGS = 16, 42, 11, 44
GROUP_RESOURCE, TOPIC = 32, "orders"
EARLIEST = {"share.auto.offset.reset": "earliest"}


Run = tuple[int, int, int]
"""First and last offset, and delivery count."""


def runs_of(answer: Any) -> list[Run]:
    """The acquired ranges in a response."""
    return [
        (run.first_offset, run.last_offset, run.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for run in partition.acquired_records
    ]


class Member:
    """A member of a share group with full control over its requests."""

    def __init__(self, client: WireClient, topic: UUID, name: str = "m", group: str = "mailer") -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.group = group
        self.epoch = 0

    def heartbeat(self, epoch: int, *topics: str) -> Any:
        return self.client.ask(
            HEARTBEAT,
            1,
            group_id=self.group,
            member_id=self.name,
            member_epoch=epoch,
            rack_id=None,
            subscribed_topic_names=topics or None,
        )

    def request(self, acks: Mapping[tuple[int, int], int] | None, epoch: int | None) -> dict[str, Any]:
        ranges = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
            for (first, last), kind in (acks or {}).items()
        ]
        used = self.epoch if epoch is None else epoch
        self.epoch = used + 1
        partition = {"partition_index": 0, "acknowledgement_batches": ranges}
        return {
            "group_id": self.group,
            "member_id": self.name,
            "share_session_epoch": used,
            "is_renew_ack": any(kind == 4 for kind in (acks or {}).values()),
            "topics": [{"topic_id": self.topic, "partitions": [partition]}],
        }

    def fetch(
        self, acks: Mapping[tuple[int, int], int] | None = None, *, epoch: int | None = None, limit: int = 10
    ) -> Any:
        return self.client.ask(
            FETCH,
            2,
            **self.request(acks, epoch),
            max_wait=0,
            min_bytes=1,
            max_bytes=1_000_000,
            max_records=limit,
            batch_size=limit,
            share_acquire_mode=0,
            forgotten_topics_data=[],
        )

    def take(self, limit: int = 10) -> list[Run]:
        return runs_of(self.fetch(limit=limit))

    def wait_for_records(self) -> None:
        """Send a fetch without waiting; `received` returns the response."""
        limits = {
            "max_wait": 20_000,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 9,
            "batch_size": 9,
        }
        request = self.request(None, None)
        self.client.send(FETCH, 2, **request, **limits, share_acquire_mode=0, forgotten_topics_data=[])

    def received(self) -> list[Run]:
        return runs_of(self.client.receive())

    def colleague(self, client: WireClient) -> "Member":
        """Another member that has joined the group."""
        other = Member(client, self.topic, "other")
        other.heartbeat(0, TOPIC)
        return other

    def acknowledge(self, acks: Mapping[tuple[int, int], int], *, epoch: int | None = None) -> Any:
        return self.client.ask(ACKNOWLEDGE, 2, **self.request(acks, epoch))

    def outcome(self, acks: Mapping[tuple[int, int], int]) -> ErrorCode:
        return ErrorCode(self.acknowledge(acks).responses[0].partitions[0].error_code)


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        client.create_topic(TOPIC)
        client.produce(TOPIC, batch_of(*(b"%d" % number for number in range(6))))
        configure(client, **EARLIEST)
        yield client


@pytest.fixture
def member(client: WireClient) -> Member:
    """A member that has joined."""
    (topic,) = client.ask(
        METADATA,
        12,
        topics=[{"topic_id": None, "name": TOPIC}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    ).topics
    member = Member(client, topic.topic_id)
    assert member.heartbeat(0, TOPIC).error_code is ErrorCode.none
    return member


def configure(client: WireClient, **settings: str) -> ErrorCode:
    configs = [{"name": name, "config_operation": 0, "value": value} for name, value in settings.items()]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": "mailer", "configs": configs}
    answer = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    return ErrorCode(answer.responses[0].error_code)


def progress(client: WireClient) -> tuple[int, int]:
    """Start offset and lag of the group."""
    answer = client.ask(DESCRIBE_OFFSETS, 1, groups=[{"group_id": "mailer", "topics": None}])
    (partition,) = answer.groups[0].topics[0].partitions
    return partition.start_offset, partition.lag


def test_a_member_receives_its_assignment_once(member: Member) -> None:
    joined = member.heartbeat(0, TOPIC)
    assert [tuple(part.partitions) for part in joined.assignment.topic_partitions] == [(0,)]
    again = member.heartbeat(joined.member_epoch)
    assert (again.error_code, again.assignment) == (ErrorCode.none, None)


def test_a_topic_that_is_created_later_is_assigned(member: Member) -> None:
    joined = member.heartbeat(0, TOPIC, "later")
    member.client.create_topic("later", partitions=2)
    response = member.heartbeat(joined.member_epoch)
    assert sorted(len(part.partitions) for part in response.assignment.topic_partitions) == [1, 2]
    assert response.member_epoch > joined.member_epoch


@pytest.mark.parametrize(
    ("name", "epoch", "error"),
    [
        ("m", 99, ErrorCode.fenced_member_epoch),
        ("stranger", 1, ErrorCode.unknown_member_id),
        ("stranger", -1, ErrorCode.unknown_member_id),
        ("m", -5, ErrorCode.invalid_request),
        ("stranger", 0, ErrorCode.invalid_request),  # it does not say what it reads
    ],
)
def test_invalid_heartbeats_are_rejected(member: Member, name: str, epoch: int, error: ErrorCode) -> None:
    member.name = name
    assert member.heartbeat(epoch).error_code is error


def test_requests_must_have_the_next_session_epoch(member: Member) -> None:
    assert member.take(1) == [(0, 0, 1)]
    assert member.fetch(epoch=7).error_code is ErrorCode.invalid_share_session_epoch
    assert member.acknowledge({(0, 0): 1}, epoch=0).error_code is ErrorCode.invalid_share_session_epoch
    member.name = "stranger"
    assert member.fetch(epoch=1).error_code is ErrorCode.share_session_not_found


def test_acknowledgments_do_not_open_a_session(member: Member) -> None:
    assert member.fetch({(0, 0): 1}, epoch=0).error_code is ErrorCode.invalid_request


def test_the_acknowledgments_of_a_partition_are_atomic(member: Member) -> None:
    assert member.take(3) == [(0, 2, 1)]
    assert member.outcome({(0, 2): 1, (3, 3): 1}) is ErrorCode.invalid_record_state
    assert progress(member.client) == (0, 6)
    assert member.outcome({(1, 2): 1}) is ErrorCode.none
    assert progress(member.client) == (0, 4)
    assert member.outcome({(0, 0): 1}) is ErrorCode.none
    assert progress(member.client) == (3, 3)
    assert member.outcome({(0, 0): 1}) is ErrorCode.none  # below the start there is nothing to say


@pytest.mark.parametrize("kinds", [{(2, 1): 1}, {(0, 0): 9}])
def test_invalid_acknowledgments_are_rejected(member: Member, kinds: Mapping[tuple[int, int], int]) -> None:
    member.take()
    assert member.outcome(kinds) is ErrorCode.invalid_request


def test_a_fetch_with_acknowledgments_returns_records_and_results(member: Member) -> None:
    member.take(1)
    answer = member.fetch({(0, 0): 1}, limit=1)
    (partition,) = answer.responses[0].partitions
    assert partition.acknowledge_error_code == 0
    assert [run.first_offset for run in partition.acquired_records] == [1]


def test_the_final_epoch_releases_acquired_records(member: Member) -> None:
    member.take(2)
    assert member.acknowledge({(0, 0): 1}, epoch=-1).error_code is ErrorCode.none
    other = Member(member.client, member.topic, "other")
    other.heartbeat(0, TOPIC)
    assert other.take(2) == [(1, 1, 2), (2, 2, 1)]


def test_a_lost_connection_releases_acquired_records(member: Member, headrace_broker: EmbeddedBroker) -> None:
    with WireClient(headrace_broker.bootstrap) as short_lived:
        gone = Member(short_lived, member.topic, "gone")
        gone.heartbeat(0, TOPIC)
        assert gone.take(6) == [(0, 5, 1)]
    taken: list[tuple[int, int, int]] = []
    while not taken:
        taken = member.take(6)
    assert taken == [(0, 5, 2)]


def test_few_records_of_a_large_batch_are_returned_as_a_slice(member: Member) -> None:
    member.client.produce(TOPIC, batch_of(*(b"x" * 100 for _ in range(100))))
    member.take(6)
    answer = member.fetch({(0, 5): 1}, limit=2)
    (partition,) = answer.responses[0].partitions
    assert [(run.first_offset, run.last_offset) for run in partition.acquired_records] == [(6, 7)]
    assert len(partition.records or b"") < 400


def test_a_waiting_fetch_gets_records_that_another_member_releases(
    member: Member, headrace_broker: EmbeddedBroker
) -> None:
    member.take(6)
    with WireClient(headrace_broker.bootstrap) as client:
        other = member.colleague(client)
        other.wait_for_records()
        assert not client.has_answer(0.1)
        assert member.outcome({(3, 3): 2}) is ErrorCode.none
        assert other.received() == [(3, 3, 2)]


def test_a_waiting_fetch_gets_a_lock_that_another_member_frees(
    member: Member, headrace_broker: EmbeddedBroker
) -> None:
    configure(member.client, **EARLIEST, **{"share.partition.max.record.locks": "2"})
    member.take(2)
    with WireClient(headrace_broker.bootstrap) as client:
        other = member.colleague(client)
        other.wait_for_records()
        assert not client.has_answer(0.1)
        assert member.outcome({(1, 1): 1}) is ErrorCode.none
        assert other.received() == [(2, 2, 1)]


def test_a_fetch_acquires_at_most_its_part_of_the_locks(member: Member) -> None:
    configure(member.client, **EARLIEST, **{"share.partition.max.record.locks": "4"})
    other = member.colleague(member.client)
    assert (member.take(), other.take(), member.take()) == ([(0, 1, 1)], [(2, 3, 1)], [])


def test_share_groups_are_listed_and_described(member: Member) -> None:
    (group,) = member.client.ask(LIST_GROUPS, 5, states_filter=[], types_filter=["share"]).groups
    assert (group.group_id, group.group_state, group.group_type) == ("mailer", "Stable", "share")
    asked = {"group_ids": ["mailer", "nobody"], "include_authorized_operations": False}
    found, missing = member.client.ask(DESCRIBE, 1, **asked).groups
    assert missing.error_code is ErrorCode.group_id_not_found
    assert [(m.member_id, tuple(m.subscribed_topic_names)) for m in found.members] == [("m", (TOPIC,))]


def test_offsets_of_an_empty_group_can_be_altered_and_deleted(member: Member) -> None:
    client = member.client
    topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 4}]}]
    assert (
        client.ask(ALTER_OFFSETS, 0, group_id="mailer", topics=topics).error_code is ErrorCode.non_empty_group
    )
    assert member.heartbeat(-1).error_code is ErrorCode.none
    assert client.ask(ALTER_OFFSETS, 0, group_id="mailer", topics=topics).error_code is ErrorCode.none
    assert progress(client) == (4, 2)
    forgotten = [{"topic_name": TOPIC}]
    assert client.ask(DELETE_OFFSETS, 0, group_id="mailer", topics=forgotten).error_code is ErrorCode.none
    assert (
        client.ask(DESCRIBE_OFFSETS, 1, groups=[{"group_id": "mailer", "topics": None}]).groups[0].topics
        == ()
    )
    assert client.ask(DELETE_GROUPS, 2, groups_names=["mailer"]).results[0].error_code is ErrorCode.none
    assert client.ask(DELETE_GROUPS, 2, groups_names=["mailer"]).results[0].error_code is (
        ErrorCode.group_id_not_found
    )


def test_start_offsets_can_be_set_before_the_first_member_joins(client: WireClient) -> None:
    topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 4}]}]
    assert client.ask(ALTER_OFFSETS, 0, group_id="mailer", topics=topics).error_code is ErrorCode.none
    assert progress(client) == (4, 2)
    (group,) = client.ask(LIST_GROUPS, 5, states_filter=[], types_filter=["share"]).groups
    assert (group.group_id, group.group_state) == ("mailer", "Empty")
    assert client.ask(ALTER_OFFSETS, 0, group_id="", topics=topics).error_code is ErrorCode.group_id_not_found


def test_invalid_settings_are_rejected(client: WireClient) -> None:
    assert configure(client, **{"share.delivery.count.limit": "0"}) is ErrorCode.invalid_config
    assert configure(client, **{"share.nonsense": "1"}) is ErrorCode.invalid_config


@pytest.mark.parametrize("duration", ["PT1H", "P1D", "p1dt2h3m4.5s", "PT0S", "+PT1H", "PT-1H+90M", "PT1,5S"])
def test_a_start_by_duration_accepts_every_duration_that_java_parses(
    client: WireClient, duration: str
) -> None:
    reset = {"share.auto.offset.reset": f"by_duration:{duration}"}
    assert configure(client, **reset) is ErrorCode.none


NO_DURATIONS = ("", "P", "PT", "P1DT", "-PT1H", "PT-1H", "1h", "P1M", "P999999999999D")


@pytest.mark.parametrize("reset", ["none", "by_duration", *(f"by_duration:{text}" for text in NO_DURATIONS)])
def test_any_other_start_is_rejected(client: WireClient, reset: str) -> None:
    assert configure(client, **{"share.auto.offset.reset": reset}) is ErrorCode.invalid_config


def test_the_share_partitions_of_a_deleted_topic_are_removed(member: Member) -> None:
    client = member.client
    member.take(2)
    client.ask(20, 5, topic_names=[TOPIC], timeout=1000)
    answer = member.fetch()
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    client.create_topic(TOPIC)
    assert (
        client.ask(DESCRIBE_OFFSETS, 1, groups=[{"group_id": "mailer", "topics": None}]).groups[0].topics
        == ()
    )
