"""What one client may take: sessions of its own only, some connections, some descriptors, some memory."""

import stat
import struct
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from headrace.testing import broker
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import DELETE_TOPICS, ConnectionEnded, WireClient, batch_of

API_VERSIONS = 18
FILE_LIMIT = 200
MEGABYTE = 2**20


def test_a_fetch_session_does_not_exist_for_another_connection() -> None:
    with broker() as kafka, WireClient(kafka.bootstrap) as owner, WireClient(kafka.bootstrap) as other:
        owner.create_topic("orders")
        owner.produce("orders", batch_of(b"tea"))
        session = owner.fetch({("orders", 0): 0}, session=(0, 0)).session_id
        stolen = other.fetch({}, session=(session, 1))
        assert stolen.error_code is ErrorCode.fetch_session_id_not_found
        other.fetch({}, session=(session, -1))  # an attempt to close it
        assert owner.fetch({}, session=(session, 1)).error_code is ErrorCode.none


def test_a_fetch_session_ends_with_its_connection() -> None:
    with broker() as kafka, WireClient(kafka.bootstrap) as other:
        with WireClient(kafka.bootstrap) as owner:
            owner.create_topic("orders")
            session = owner.fetch({("orders", 0): 0}, session=(0, 0)).session_id
        answer = other.fetch({}, session=(session, 1))
        assert answer.error_code is ErrorCode.fetch_session_id_not_found


@pytest.mark.parametrize("limit", ["max_connections_per_ip", "max_connections"])
def test_more_connections_than_allowed_are_refused_of_one_address_and_in_total(limit: str) -> None:
    with (
        broker(**{limit: 2}) as kafka,
        WireClient(kafka.bootstrap) as first,
        WireClient(kafka.bootstrap) as second,
    ):
        assert first.ask(API_VERSIONS, 0).error_code is ErrorCode.none
        assert second.ask(API_VERSIONS, 0).error_code is ErrorCode.none
        with WireClient(kafka.bootstrap) as third, pytest.raises((ConnectionEnded, ConnectionError)):
            third.ask(API_VERSIONS, 0)


def test_a_broker_of_many_partitions_needs_few_descriptors_and_starts_again(tmp_path: Path) -> None:
    limit = ["prlimit", f"--nofile={FILE_LIMIT}:{FILE_LIMIT}"]
    with BrokerProcess(tmp_path / "data", before=limit) as kafka:
        with WireClient(kafka.address) as client:
            assert client.create_topic("wide", partitions=2 * FILE_LIMIT).error_code is ErrorCode.none
            for index in range(0, 2 * FILE_LIMIT, 4):
                assert client.produce("wide", batch_of(b"tea"), index).error_code is ErrorCode.none
        kafka.restart()
        with WireClient(kafka.address) as client:
            assert client.end_offset("wide") == 1
            deleted = client.ask(DELETE_TOPICS, 5, topic_names=["wide"], timeout=10_000)
            assert deleted.responses[0].error_code is ErrorCode.none


def test_more_partitions_than_the_broker_serves_are_refused_until_topics_are_deleted() -> None:
    with broker(max_partitions=10) as kafka, WireClient(kafka.bootstrap) as client:
        assert client.create_topic("orders", partitions=8).error_code is ErrorCode.none
        assert client.create_topic("cups", partitions=3).error_code is ErrorCode.invalid_partitions
        client.ask(DELETE_TOPICS, 5, topic_names=["orders"], timeout=10_000)
        assert client.create_topic("cups", partitions=3).error_code is ErrorCode.none


def test_a_large_request_waits_for_memory_that_another_has_reserved() -> None:
    with broker(connection_memory_bytes=3 * MEGABYTE) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("orders", max_message_bytes=str(4 * MEGABYTE))
        with WireClient(kafka.bootstrap) as slow, WireClient(kafka.bootstrap) as second:
            slow.send_bytes(struct.pack(">i", 2 * MEGABYTE) + bytes(300_000))
            client.ask(API_VERSIONS, 0)
            second.send_produce("orders", batch_of(bytes(2 * MEGABYTE)))
            assert client.produce("orders", batch_of(b"small")).error_code is ErrorCode.none
            slow.close()
            assert second.receive().responses[0].partition_responses[0].error_code is ErrorCode.none


def test_the_data_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    with broker(data=tmp_path / "data"):
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
