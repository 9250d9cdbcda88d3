"""DescribeClientQuotas and AlterClientQuotas: the same answers as Apache Kafka, in the cluster suite."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.security.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from tests.broker.processes import wait_until
from tests.broker.wire_client import WireClient, batch_of
from tests.client.batches import fresh_name
from tools.apache_kafka import fetch_jars

DESCRIBE, ALTER = 48, 49
LARGE = 10.0**9
"""A quota that throttles no other client of the broker."""

Described = list[tuple[tuple[tuple[str, str | None], ...], Mapping[str, float]]]


@pytest.fixture
def client(bootstrap: str) -> Iterator[WireClient]:
    """A client of a broker without quotas."""
    with WireClient(bootstrap) as client:
        yield client
        for entity, values in describe(client):
            parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
            alter(client, parts, [{"key": key, "value": 0.0, "remove": True} for key in values])
        wait_until(lambda: not describe(client), "the quotas to be gone")


def alter(client: WireClient, entity: list[dict[str, Any]], ops: list[dict[str, Any]], **more: Any) -> Any:
    fields = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False} | more
    return client.ask(ALTER, 1, **fields).entries[0]


def set_quota(client: WireClient, key: str, value: float, **entity: str | None) -> ErrorCode:
    parts = [{"entity_type": kind.replace("_", "-"), "entity_name": name} for kind, name in entity.items()]
    code: ErrorCode = alter(client, parts, [{"key": key, "value": value, "remove": False}]).error_code
    return code


def describe(client: WireClient, *components: tuple[str, int, str | None], strict: bool = False) -> Described:
    wanted = [
        {"entity_type": kind, "match_type": match_type, "match": match}
        for kind, match_type, match in components
    ]
    answer = client.ask(DESCRIBE, 1, components=wanted, strict=strict)
    assert answer.error_code is ErrorCode.none
    return [
        (
            tuple((part.entity_type, part.entity_name) for part in entry.entity),
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries
    ]


def test_a_quota_is_described_by_name_default_and_kind(client: WireClient) -> None:
    set_quota(client, PRODUCER_BYTE_RATE, LARGE, user="alice")
    set_quota(client, CONSUMER_BYTE_RATE, LARGE, user="alice", client_id="app")
    set_quota(client, REQUEST_PERCENTAGE, 50_000.5, user=None)
    wait_until(lambda: len(describe(client)) == 3, "the quotas")
    assert len(describe(client, ("user", 0, "alice"))) == 2
    assert describe(client, ("user", 0, "alice"), strict=True) == [
        ((("user", "alice"),), {PRODUCER_BYTE_RATE: LARGE})
    ]
    assert describe(client, ("user", 1, None)) == [((("user", None),), {REQUEST_PERCENTAGE: 50_000.5})]
    assert len(describe(client, ("user", 2, None))) == 3
    assert len(describe(client, ("client-id", 2, None))) == 1
    assert describe(client, ("client-id", 0, "other")) == []
    assert describe(client, ("ip", 2, None)) == []


def test_quotas_of_an_entity_are_added_changed_and_removed_one_by_one(client: WireClient) -> None:
    set_quota(client, PRODUCER_BYTE_RATE, LARGE, user="bob")
    set_quota(client, CONSUMER_BYTE_RATE, LARGE, user="bob")
    set_quota(client, PRODUCER_BYTE_RATE, 2 * LARGE, user="bob")
    expected = [((("user", "bob"),), {PRODUCER_BYTE_RATE: 2 * LARGE, CONSUMER_BYTE_RATE: LARGE})]
    wait_until(lambda: describe(client) == expected, "both quotas")
    bob = [{"entity_type": "user", "entity_name": "bob"}]
    for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE):
        answer = alter(client, bob, [{"key": key, "value": 0.0, "remove": True}])
        assert answer.error_code is ErrorCode.none
    wait_until(lambda: describe(client) == [], "the quotas to be gone")


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", 0, None)], ErrorCode.invalid_request),
        ([("user", 1, "alice")], ErrorCode.invalid_request),
        ([("user", 7, None)], ErrorCode.invalid_request),
        ([("", 2, None)], ErrorCode.invalid_request),
        ([("user", 2, None), ("user", 1, None)], ErrorCode.invalid_request),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.invalid_request),
        ([("planet", 2, None)], ErrorCode.unsupported_version),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(
    client: WireClient, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    wanted = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    answer = client.ask(DESCRIBE, 1, components=wanted, strict=False)
    assert (answer.error_code, answer.entries) == (code, None)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({"user": "alice"}, "speed", 1.0),
        ({"user": "alice"}, PRODUCER_BYTE_RATE, 0.0),
        ({"user": "alice"}, PRODUCER_BYTE_RATE, 1.5),
        ({"user": ""}, REQUEST_PERCENTAGE, 1.0),
        ({"planet": "mars"}, REQUEST_PERCENTAGE, 1.0),
        ({}, REQUEST_PERCENTAGE, 1.0),
    ],
)
def test_a_quota_that_cannot_be_is_refused_and_not_stored(
    client: WireClient, entity: dict[str, str], key: str, value: float
) -> None:
    assert set_quota(client, key, value, **entity) is ErrorCode.invalid_request
    assert describe(client) == []


@pytest.mark.parametrize("bootstrap", ["headrace"], indirect=True)
@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({"user": "alice"}, REQUEST_PERCENTAGE, float("inf")),
        ({"user": "alice"}, REQUEST_PERCENTAGE, float("nan")),
        ({"user": "alice"}, "controller_mutation_rate", 1.0),
        ({"ip": "127.0.0.1"}, "connection_creation_rate", 1.0),
    ],
)
def test_a_quota_that_would_limit_nothing_is_refused_where_apache_kafka_stores_it(
    client: WireClient, entity: dict[str, str], key: str, value: float
) -> None:
    assert set_quota(client, key, value, **entity) is ErrorCode.invalid_request
    assert describe(client) == []


def test_a_validation_changes_nothing(client: WireClient) -> None:
    entity = [{"entity_type": "user", "entity_name": "alice"}]
    ops = [{"key": PRODUCER_BYTE_RATE, "value": 1.0, "remove": False}]
    assert alter(client, entity, ops, validate_only=True).error_code is ErrorCode.none
    assert describe(client) == []


@pytest.fixture
def read_too_much(client: WireClient) -> Callable[[tuple[int, int]], Any]:
    """Reads batches of 97 and 5 KB by turns, with a quota of 100 KB in ten seconds, until it is throttled."""
    topic = fresh_name("throttled")
    client.create_topic(topic, retention_ms="-1")
    for size in (97_000, 5_000):
        client.produce(topic, batch_of(b"x" * size))
    set_quota(client, CONSUMER_BYTE_RATE, 10_000, user="ANONYMOUS")

    def read(session: tuple[int, int]) -> Any:
        deadline = time.monotonic() + 30
        offset = 1
        while True:
            offset = 1 - offset
            answer = client.fetch({(topic, 0): offset}, session=session, partition_bytes=1)
            if answer.throttle_time > timedelta(0):
                return answer
            assert len(answer.responses[0].partitions[0].records) > 5_000
            assert time.monotonic() < deadline, "no fetch was throttled"

    return read


def test_a_fetch_above_the_quota_is_answered_without_records_and_the_client_is_muted(
    client: WireClient, read_too_much: Callable[[tuple[int, int]], Any]
) -> None:
    answer = read_too_much((0, -1))
    assert (answer.error_code, answer.responses) == (ErrorCode.none, ())
    began = time.monotonic()
    describe(client)
    assert time.monotonic() - began >= answer.throttle_time.total_seconds() * 0.9


def test_a_throttled_fetch_opens_no_session(read_too_much: Callable[[tuple[int, int]], Any]) -> None:
    answer = read_too_much((0, 0))
    assert (answer.session_id, answer.responses) == (0, ())


@pytest.mark.cluster
@pytest.mark.parametrize("bootstrap", ["headrace"], indirect=True)
def test_the_command_of_apache_kafka_manages_quotas(bootstrap: str, client: WireClient) -> None:
    def kafka_configs(*arguments: str) -> str:
        command = ["java", "-cp", f"{fetch_jars()}/*", "kafka.admin.ConfigCommand"]
        done = subprocess.run(
            [*command, "--bootstrap-server", bootstrap, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    alice = ["--entity-type", "users", "--entity-name", "alice"]
    kafka_configs("--alter", *alice, "--add-config", f"{PRODUCER_BYTE_RATE}=1048576")
    assert describe(client) == [((("user", "alice"),), {PRODUCER_BYTE_RATE: 1048576.0})]
    assert f"{PRODUCER_BYTE_RATE}=1048576.0" in kafka_configs("--describe", *alice)
    kafka_configs("--alter", *alice, "--delete-config", PRODUCER_BYTE_RATE)
    assert describe(client) == []
