"""Quotas: which limit counts, how long a client is throttled, and what its connection then does."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.broker.security.quotas import (
    BURST_SECONDS,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    SAMPLE_MS,
    SAMPLES,
    Entity,
    Limit,
    Quotas,
    RateMeter,
    fitting_entities,
)
from headrace.broker.security.store import SecurityStore
from headrace.broker.state_log import MemoryStateLog
from headrace.broker.throttling import _with_throttle_time, throttle_position
from headrace.protocol.requests import API_VERSIONS, RequestHeader
from headrace.protocol.responses import write_response
from headrace.testing import EmbeddedBroker, broker
from tests.broker.security.brokers import PASSWORD, create_admin, sasl_config, secure_broker
from tests.broker.security.test_quota_requests import LARGE, alter, describe, set_quota
from tests.broker.virtual_clock import VirtualClock
from tests.broker.wire_client import METADATA, PRODUCE, WireClient, batch_of, read_response
from tests.protocol.entities import responses
from tests.protocol.test_responses import WRITTEN_BY_SCHEMA, plain

SECOND_MS = 1000.0


# The limit that counts


@pytest.mark.parametrize("first", range(8))
def test_the_most_specific_entity_counts(first: int) -> None:
    entities = list(fitting_entities("alice", "app"))
    quotas = Quotas({entity: {PRODUCER_BYTE_RATE: n} for n, entity in enumerate(entities) if n >= first})
    limits = quotas.limits("alice", "app")
    assert limits is not None
    assert limits.produce is not None
    assert limits.produce.value == first


def test_each_limit_comes_from_the_most_specific_entity_that_has_it() -> None:
    quotas = Quotas({Entity("alice"): {PRODUCER_BYTE_RATE: 1.0}, Entity(DEFAULT): {CONSUMER_BYTE_RATE: 2.0}})
    limits = quotas.limits("alice", "app")
    assert limits is not None
    assert (limits.produce and limits.produce.value, limits.fetch and limits.fetch.value) == (1.0, 2.0)
    assert limits.request is None


def test_a_client_that_no_entity_fits_has_no_limits() -> None:
    assert Quotas({Entity("alice"): {PRODUCER_BYTE_RATE: 1.0}}).limits("bob", "app") is None


@pytest.mark.parametrize(
    ("entity", "shares_user", "shares_client"),
    [
        (Entity("alice", "app"), False, False),
        (Entity(DEFAULT, DEFAULT), False, False),
        (Entity("alice"), True, False),
        (Entity(DEFAULT), True, False),
        (Entity(client_id="app"), False, True),
        (Entity(client_id=DEFAULT), False, True),
    ],
)
def test_clients_share_a_limit_if_the_entity_does_not_tell_them_apart(
    entity: Entity, shares_user: bool, shares_client: bool
) -> None:
    quotas = Quotas({entity: {PRODUCER_BYTE_RATE: 1.0}})

    def meter(user: str, client_id: str) -> RateMeter | None:
        limits = quotas.limits(user, client_id)
        return None if limits is None or limits.produce is None else limits.produce.meter

    assert meter("alice", "app") is meter("alice", "app") is not None
    assert (meter("alice", "app") is meter("alice", "other")) == shares_user
    assert (meter("alice", "app") is meter("bob", "app")) == shares_client


def test_what_was_used_still_counts_when_a_quota_changes() -> None:
    table = {Entity("alice"): {PRODUCER_BYTE_RATE: 100.0}}
    quotas = Quotas(table)
    before = quotas.limits("alice", "app")
    table[Entity("alice")] = {PRODUCER_BYTE_RATE: 200.0}
    quotas.changed()
    after = quotas.limits("alice", "app")
    assert before is not None
    assert after is not None
    assert after.produce == Limit(200.0, before.produce.meter if before.produce else RateMeter())


# The rate


def test_ten_seconds_of_a_limit_may_be_used_at_once() -> None:
    clock = VirtualClock()
    limit = Limit(100.0, RateMeter())
    assert limit.charge(1000, clock.now_ms()) == 0
    assert limit.charge(100, clock.now_ms()) == pytest.approx(SECOND_MS)


def test_a_client_that_waits_as_it_is_told_keeps_its_limit() -> None:
    clock = VirtualClock()
    limit = Limit(100.0, RateMeter())
    start = clock.now_ms()
    used = 0
    while clock.now_ms() - start < 60 * SECOND_MS:
        used += 50
        clock.advance(int(limit.charge(50, clock.now_ms())) + 1)
    elapsed = (clock.now_ms() - start) / 1000
    assert used <= 100 * (elapsed + BURST_SECONDS)
    assert used >= 100 * elapsed * 0.8


def test_a_client_that_made_a_pause_is_not_throttled_for_what_was_before() -> None:
    clock = VirtualClock()
    limit = Limit(100.0, RateMeter())
    limit.charge(5_000, clock.now_ms())
    clock.advance(SAMPLES * SAMPLE_MS)
    assert limit.charge(1, clock.now_ms()) == 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 10_000)), max_size=40), st.integers(1, 5_000))
def test_a_rate_is_what_was_used_in_the_last_samples(uses: list[tuple[int, int]], limit: int) -> None:
    clock = VirtualClock()
    meter = RateMeter()
    samples: list[tuple[int, int]] = []
    for pause_ms, amount in uses:
        clock.advance(pause_ms)
        now_ms = clock.now_ms()
        meter.record(amount, now_ms)
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append((now_ms, 0))
        samples[-1] = (samples[-1][0], samples[-1][1] + amount)
        kept = [(at, used) for at, used in samples if now_ms - at < SAMPLES * SAMPLE_MS]
        elapsed_ms = now_ms - kept[0][0]
        window_ms = elapsed_ms + max(BURST_SECONDS - elapsed_ms // SAMPLE_MS, 0) * SAMPLE_MS
        rate = sum(used for _, used in kept) * 1000 / window_ms
        expected = max((rate - limit) / limit * window_ms, 0)
        assert meter.throttle_ms(limit, now_ms) == pytest.approx(expected)


def test_a_clock_that_is_set_back_does_not_throttle_for_ever() -> None:
    limit = Limit(100.0, RateMeter())
    limit.charge(10_000, 1_000_000)
    assert limit.charge(1, 5_000) == 0


# The store


def test_quotas_are_there_after_a_restart() -> None:
    log = MemoryStateLog()
    store = SecurityStore(log)
    store.alter_quotas(Entity("alice", DEFAULT), {PRODUCER_BYTE_RATE: 10.0})
    store.alter_quotas(Entity(client_id="app"), {REQUEST_PERCENTAGE: 12.5})
    store.alter_quotas(Entity("alice", DEFAULT), {})
    assert SecurityStore(log).quotas == store.quotas == {Entity(client_id="app"): {REQUEST_PERCENTAGE: 12.5}}


# The throttle time in responses


@given(data=st.data(), api=st.sampled_from(WRITTEN_BY_SCHEMA))
@settings(max_examples=300)
def test_the_throttle_time_is_written_into_every_response_that_has_one(
    data: st.DataObject, api: tuple[int, int]
) -> None:
    api_key, version = api
    entity = data.draw(responses(api_key, version))
    if api_key == API_VERSIONS or not hasattr(entity, "throttle_time"):
        assert throttle_position(api_key, version) is None
        return
    packed = write_response(api_key, version, 1, plain(entity))
    changed = _with_throttle_time(packed, RequestHeader(api_key, version, 1, "", 0), 4711)
    assert isinstance(changed, bytes)
    _, found = read_response(api_key, version, changed[4:])
    assert found.throttle_time == timedelta(milliseconds=4711)


# A broker with quotas


@pytest.fixture
def running() -> Iterator[EmbeddedBroker]:
    with broker() as running:
        yield running


@pytest.fixture
def client(running: EmbeddedBroker) -> Iterator[WireClient]:
    """A client of a broker without quotas."""
    with WireClient(running.bootstrap) as client:
        yield client


def test_a_producer_above_its_quota_is_told_and_not_read_for_that_time(client: WireClient) -> None:
    client.create_topic("orders")
    assert set_quota(client, PRODUCER_BYTE_RATE, 10_000, client_id=None) is ErrorCode.none
    client.send_produce("orders", batch_of(b"x" * 104_000))
    throttle = client.receive().throttle_time
    assert throttle > timedelta(milliseconds=200)
    began = time.monotonic()
    client.ask(METADATA, 9, **metadata())
    assert time.monotonic() - began > throttle.total_seconds() * 0.9


def test_a_producer_that_wants_no_response_is_muted_too(client: WireClient) -> None:
    client.create_topic("unanswered")
    set_quota(client, PRODUCER_BYTE_RATE, 10_000, client_id=None)
    client.send_produce("unanswered", batch_of(b"x" * 103_000), acks=0)
    began = time.monotonic()
    client.ask(METADATA, 9, **metadata())
    assert time.monotonic() - began > 0.2


def test_a_fetch_brings_at_most_ten_seconds_of_the_quota(client: WireClient) -> None:
    client.create_topic("read", retention_ms="-1")
    for _ in range(30):
        client.produce("read", batch_of(b"x" * 1_000))
    set_quota(client, CONSUMER_BYTE_RATE, 1_000, client_id=None)
    answer = client.fetch({("read", 0): 0})
    records = answer.responses[0].partitions[0].records
    assert 5_000 < len(records) <= 10_000


def test_a_batch_above_ten_seconds_of_the_quota_is_read_once_nothing_else_was(client: WireClient) -> None:
    client.create_topic("heavy", retention_ms="-1")
    client.produce("heavy", batch_of(b"x" * 30_000))
    set_quota(client, CONSUMER_BYTE_RATE, 1_000, client_id=None)
    answer = client.fetch({("heavy", 0): 0})
    assert answer.throttle_time == timedelta(0)
    assert len(answer.responses[0].partitions[0].records) > 30_000
    refused = client.fetch({("heavy", 0): 0})
    assert (refused.throttle_time > timedelta(seconds=10), refused.responses) == (True, ())


def test_what_a_fetch_would_exceed_does_not_count_as_used() -> None:
    clock = VirtualClock()
    limit = Limit(100.0, RateMeter())
    assert limit.admit(900, clock.now_ms())
    assert not limit.admit(200, clock.now_ms())
    assert limit.admit(100, clock.now_ms())


def test_request_time_above_the_percentage_throttles_for_a_second_at_most(client: WireClient) -> None:
    set_quota(client, REQUEST_PERCENTAGE, 0.001, client_id=None)
    throttles = [client.ask(METADATA, 9, **metadata()).throttle_time for _ in range(3)]
    assert timedelta(0) < max(throttles) <= timedelta(seconds=1)


def metadata() -> dict[str, Any]:
    return {
        "topics": None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def test_an_open_connection_is_no_longer_measured_when_the_last_quota_is_removed(
    running: EmbeddedBroker, client: WireClient
) -> None:
    client.create_topic("free")
    set_quota(client, PRODUCER_BYTE_RATE, 1, user="somebody")
    alter(
        client,
        [{"entity_type": "user", "entity_name": "somebody"}],
        [{"key": PRODUCER_BYTE_RATE, "value": 0.0, "remove": True}],
    )
    assert describe(client) == []
    client.send_produce("free", batch_of(b"x" * 100_000))
    assert client.receive().throttle_time == timedelta(0)


def test_other_clients_are_served_while_one_is_throttled(running: EmbeddedBroker, client: WireClient) -> None:
    set_quota(client, PRODUCER_BYTE_RATE, 1_000, user="ANONYMOUS", client_id="greedy")
    throttled: list[float] = []
    modest = Producer({"bootstrap.servers": running.bootstrap, "client.id": "modest"})
    greedy = Producer(
        {
            "bootstrap.servers": running.bootstrap,
            "client.id": "greedy",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    client.create_topic("shared")
    greedy.produce("shared", b"x" * 11_000)
    while not throttled:
        greedy.poll(0.1)
    modest.produce("shared", b"small")
    assert modest.flush(60) == 0
    assert throttled[0] > 0
    assert greedy.flush(60) == 0


def test_a_consumer_of_librdkafka_is_told_that_it_is_throttled(
    running: EmbeddedBroker, client: WireClient
) -> None:
    client.create_topic("consumed", retention_ms="-1")
    for _ in range(4):
        client.produce("consumed", batch_of(b"x" * 4_000))
    set_quota(client, CONSUMER_BYTE_RATE, 1_600, client_id="reader")
    throttled: list[float] = []
    consumer = Consumer(
        {
            "bootstrap.servers": running.bootstrap,
            "client.id": "reader",
            "group.id": "quota",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    consumer.assign([TopicPartition("consumed", 0, 0)])
    values = []
    while len(values) < 4:
        message = consumer.poll(60 if throttled else 0.1)
        if throttled:
            set_quota(client, CONSUMER_BYTE_RATE, LARGE, client_id="reader")
        if message is not None and message.value() is not None:
            values.append(message.value())
    assert len(values) == 4
    consumer.close()


def test_a_quota_belongs_to_the_user_who_authenticated(tmp_path: Path) -> None:
    create_admin(tmp_path / "data")
    throttled: list[float] = []
    with secure_broker(tmp_path / "data", "SASL_PLAINTEXT", "PLAINTEXT", settings=ANONYMOUS_MAY) as running:
        with WireClient(running.bootstraps[1]) as client:
            client.create_topic("orders")
            set_quota(client, PRODUCER_BYTE_RATE, 1_000, user="admin")
            client.send_produce("orders", batch_of(b"x" * 20_000))
            assert client.receive().throttle_time == timedelta(0), "ANONYMOUS has no quota"
        config = sasl_config(running, password=PASSWORD)
        producer = Producer(config | {"throttle_cb": lambda event: throttled.append(event.throttle_time)})
        producer.produce("orders", b"x" * 11_000)
        while not throttled:
            producer.poll(0.1)
        assert producer.flush(60) == 0


ANONYMOUS_MAY = {"super_users": frozenset({"User:ANONYMOUS"})}


def test_the_produce_api_is_the_one_whose_throttle_time_comes_last() -> None:
    assert throttle_position(PRODUCE, 8) == -4
    assert throttle_position(PRODUCE, 9) == -5
