"""Connections to an Apache Kafka with TLS and SASL: every way to authenticate, and every way to fail."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from headrace.client.bootstrap import client_config
from headrace.client.cluster import Cluster
from headrace.client.errors import AuthenticationFailed, BadResponse, BrokerUnreachable, TokenUnavailable
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from tests.client.batches import batch, fresh_name, numbers, read_values
from tests.cluster.identity import CLIENT, token_endpoint
from tools.secured_kafka import USER, SecuredKafka, unsigned_token

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

PROFILES = ("scram256", "scram512", "plain", "unencrypted", "mutual", "tokens")
SESSION_MS = 2_000
EXPIRED = "tests.cluster.test_secured_connections:expired_token"


def expired_token(user: str) -> tuple[str, float]:
    return unsigned_token(user, lifetime_s=-60)


@pytest.fixture
def kafka(secured_kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> SecuredKafka:
    """The broker, whose profiles the clients of this process find."""
    monkeypatch.setenv("HEADRACE_PROJECT", str(secured_kafka.folder))
    return secured_kafka


@pytest.mark.parametrize("profile", PROFILES)
def test_both_clients_connect_with_every_profile(kafka: SecuredKafka, profile: str) -> None:
    bootstrap = kafka.bootstrap_of(profile)
    with Cluster.of(bootstrap) as cluster:
        assert [str(broker) for broker in cluster.brokers()] == [bootstrap.partition("://")[2]]
    assert len(AdminClient(client_config(bootstrap)).list_topics(timeout=100).brokers) == 1


def test_the_command_line_uses_the_profile_of_the_environment(kafka: SecuredKafka, tmp_path: Path) -> None:
    environment = {
        "HEADRACE_BROKER": kafka.listeners["SASL_SSL"],
        "HEADRACE_SECURITY_PROTOCOL": "SASL_SSL",
        "HEADRACE_SASL_MECHANISM": "SCRAM-SHA-512",
        "HEADRACE_SASL_USERNAME": USER,
        "HEADRACE_SASL_PASSWORD_FILE": str(kafka.folder / "password"),
        "HEADRACE_SSL_CA_LOCATION": str(kafka.folder / "ca.pem"),
    }
    topic = fresh_name("topic")

    def headrace(*arguments: str, given: str = "") -> str:
        command = [sys.executable, "-m", "headrace.cli", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert headrace("topic", "create", topic, "--partitions", "2") == f"created topic {topic}\n"
    headrace("produce", topic, given='{"a": 1}\n')
    assert headrace("consume", topic, "--until", "end").strip() == '{"a": 1}'


@pytest.mark.parametrize(
    ("variables", "profile", "problem"),
    [
        ({"SASL_PASSWORD": "wrong"}, "scram256", "refused the authentication as 'jobs' by SCRAM-SHA-256"),
        ({"SASL_PASSWORD": "wrong"}, "plain", "refused the authentication as 'jobs' by PLAIN"),
        ({"SASL_USERNAME": "nobody"}, "scram512", "refused the authentication as 'nobody'"),
        ({"SASL_OAUTHBEARER_CALLBACK": EXPIRED}, "tokens", "refused the authentication by OAUTHBEARER"),
        ({"SSL_CA_LOCATION": "other-ca.pem"}, "scram512", "certificate .* is not accepted"),
        ({"SSL_CA_LOCATION": "other-ca.pem"}, "mutual", "certificate .* is not accepted"),
    ],
)
def test_credentials_that_are_not_accepted_are_named_at_once_without_their_secrets(
    kafka: SecuredKafka,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    profile: str,
    problem: str,
) -> None:
    monkeypatch.chdir(kafka.folder)
    for name, value in variables.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    with Cluster.of(kafka.bootstrap_of(profile)) as cluster, pytest.raises(AuthenticationFailed) as refusal:
        cluster.brokers()
    refusal.match(problem)
    assert kafka.password not in str(refusal.value)
    assert "'wrong'" not in str(refusal.value)


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("HEADRACE_SSL_CA_LOCATION", str(kafka.folder / "ca.pem"))
    with (
        Cluster.of(f"environment://{kafka.listeners['MUTUAL']}") as cluster,
        pytest.raises(AuthenticationFailed, match=r"TLS with .* failed"),
    ):
        cluster.brokers()


def test_a_wrong_listener_is_explained(kafka: SecuredKafka) -> None:
    encrypted, open_listener = kafka.listeners["SASL_SSL"], kafka.bootstrap
    with Cluster.of(encrypted) as cluster, pytest.raises(BadResponse, match="expects TLS"):
        cluster.brokers()
    with (
        Cluster.of(kafka.listeners["SASL_PLAINTEXT"]) as cluster,
        pytest.raises(BrokerUnreachable, match="requires SASL"),
    ):
        cluster.brokers()
    with (
        Cluster.of(f"scram512://{open_listener}") as cluster,
        pytest.raises(BrokerUnreachable, match="check that this listener uses TLS"),
    ):
        cluster.brokers()
    with (
        Cluster.of(f"unencrypted://{open_listener}") as cluster,
        pytest.raises(AuthenticationFailed, match="does not offer SCRAM-SHA-512"),
    ):
        cluster.brokers()


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker that wants clients to authenticate again every few seconds (KIP-368)."""
    folder = tmp_path_factory.mktemp("forgetful")
    with SecuredKafka(folder, {"connections.max.reauth.ms": str(SESSION_MS)}) as kafka:
        yield kafka


@pytest.mark.parametrize("profile", ["scram512", "plain", "tokens"])
def test_a_connection_authenticates_again_before_its_session_ends(
    forgetful: SecuredKafka, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setenv("HEADRACE_PROJECT", str(forgetful.folder))
    with Cluster.of(forgetful.bootstrap_of(profile)) as cluster:
        topic = fresh_name("topic")
        create_topics(cluster, [NewTopic(name=topic, partitions=1)])
        partition = TopicPartition(topic, 0)
        first = cluster.leader(partition)
        producer = BatchProducer(cluster)
        written, end = 0, time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < end:  # requests are in flight while the connection authenticates
            producer.send(partition, batch(numbers(written, written + 1)))
            written += 1
        producer.flush()
        assert cluster.leader(partition) is first
        assert first.is_open
        assert read_values(cluster, partition) == numbers(0, written)


def test_a_session_that_ended_while_the_connection_was_idle_is_renewed(
    forgetful: SecuredKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_PROJECT", str(forgetful.folder))
    with Cluster.of(forgetful.bootstrap_of("scram256")) as cluster:
        connection = cluster.any()
        threading.Event().wait(1.5 * SESSION_MS / 1000)  # the time that the broker allows, and more
        assert cluster.topics([]) == {}
        assert cluster.any() is connection


@pytest.fixture
def endpoint(kafka: SecuredKafka, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The forms that a token endpoint was sent, whose client the environment describes."""
    with token_endpoint(kafka.folder, "a secret") as endpoint:
        variables = {
            "SECURITY_PROTOCOL": "SASL_SSL",
            "SASL_MECHANISM": "OAUTHBEARER",
            "SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": endpoint.url,
            "SASL_OAUTHBEARER_CLIENT_ID": CLIENT,
            "SASL_OAUTHBEARER_CLIENT_SECRET": "a secret",
            "SASL_OAUTHBEARER_SCOPE": "kafka",
            "SSL_CA_LOCATION": str(kafka.folder / "ca.pem"),
            "HTTPS_CA_LOCATION": str(endpoint.ca),
        }
        for name, value in variables.items():
            monkeypatch.setenv(f"HEADRACE_{name}", value)
        yield endpoint.asked


def test_tokens_come_from_the_endpoint_and_serve_all_connections(
    kafka: SecuredKafka, endpoint: list[str]
) -> None:
    bootstrap = f"environment://{kafka.listeners['SASL_SSL']}"
    for _ in range(2):
        with Cluster.of(bootstrap) as cluster:
            assert len(cluster.brokers()) == 1
    assert len(AdminClient(client_config(bootstrap)).list_topics(timeout=100).brokers) == 1
    assert endpoint == ["grant_type=client_credentials&scope=kafka"]


def test_a_client_that_the_endpoint_does_not_know_is_named_without_its_secret(
    kafka: SecuredKafka, endpoint: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_SASL_OAUTHBEARER_CLIENT_SECRET", "another secret")
    bootstrap = f"environment://{kafka.listeners['SASL_SSL']}"
    with Cluster.of(bootstrap) as cluster, pytest.raises(TokenUnavailable) as refusal:
        cluster.brokers()
    refusal.match(r"refused the client: invalid_client \(HTTP 401\)")
    assert "another secret" not in str(refusal.value)
