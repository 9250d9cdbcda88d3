"""Headrace's own clients on Headrace's own broker with TLS and SASL, also while a password changes."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from typer.testing import CliRunner

from headrace.broker.security.settings import ClientAuth
from headrace.cli.app import app
from headrace.client.bootstrap import client_config
from headrace.client.cluster import Cluster
from headrace.client.errors import AuthenticationFailed
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.testing import EmbeddedBroker
from tests.broker.security.brokers import ADMIN, PASSWORD, Authority, create_admin, secure_broker
from tests.client.batches import batch, fresh_name, numbers, read_values
from tools.secured_kafka import SASL_PROFILES, sasl_profiles

SESSION_MS = 1_500
MUTUAL = """
[security.mutual]
security.protocol = "SSL"
ssl.ca.location = "ca.pem"
ssl.certificate.location = "client.pem"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a profile for each way to connect."""
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def kafka(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker that wants its clients to authenticate again soon."""
    authority = Authority(folder)
    authority.issue("client", "jobs@headrace.test", common_name=ADMIN)
    data = tmp_path_factory.mktemp("broker") / "data"
    create_admin(data)
    security = {
        "certificate": authority.issue("broker"),
        "client_ca": authority.ca_file,
        "client_auth": ClientAuth.REQUIRED,
        "super_users": frozenset({f"User:{ADMIN}"}),
        "principal_mapping_rules": "RULE:^.*CN=([^,]*).*$/$1/L, DEFAULT",
        "sasl_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
        "session_lifetime_ms": SESSION_MS,
    }
    with secure_broker(data, "SASL_SSL", "SASL_PLAINTEXT", "SSL", settings=security) as running:
        yield running


@pytest.fixture(autouse=True)
def _profiles(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "headrace.toml").write_text(sasl_profiles(folder, ADMIN) + MUTUAL)
    (folder / "password").write_text(PASSWORD)
    monkeypatch.setenv("HEADRACE_PROJECT", str(folder))


def address(kafka: EmbeddedBroker, profile: str) -> str:
    listener = {"unencrypted": 1, "mutual": 2}.get(profile, 0)
    return f"{profile}://{kafka.bootstraps[listener]}"


@pytest.mark.parametrize("profile", [*SASL_PROFILES, "mutual"])
def test_both_clients_connect_with_every_profile(kafka: EmbeddedBroker, profile: str) -> None:
    with Cluster.of(address(kafka, profile)) as cluster:
        assert len(cluster.brokers()) == 1
    assert len(AdminClient(client_config(address(kafka, profile))).list_topics(timeout=100).brokers) == 1


def test_a_wrong_password_is_told_at_once_and_not_repeated(kafka: EmbeddedBroker, folder: Path) -> None:
    (folder / "password").write_text("guessed")
    with Cluster.of(address(kafka, "plain")) as cluster, pytest.raises(AuthenticationFailed) as refusal:
        cluster.brokers()
    assert "refused the authentication as 'admin' by PLAIN" in str(refusal.value)
    assert "guessed" not in str(refusal.value)
    listed = CliRunner().invoke(app, ["topic", "list", "--broker", address(kafka, "scram256")])
    assert listed.exit_code == 1
    assert "guessed" not in listed.output


def test_the_protocol_of_a_listener_is_not_taken_for_a_profile(kafka: EmbeddedBroker) -> None:
    listed = CliRunner().invoke(app, ["topic", "list", "--broker", f"SASL_SSL://{kafka.bootstrap}"])
    assert listed.exit_code == 2
    assert "SASL_SSL is a security.protocol" in listed.output


def test_requests_in_flight_survive_a_new_authentication(kafka: EmbeddedBroker) -> None:
    with Cluster.of(address(kafka, "scram512")) as cluster:
        partition = new_partition(cluster)
        first = cluster.leader(partition)
        producer = BatchProducer(cluster)
        written, end = 0, time.monotonic() + 2.5 * SESSION_MS / 1000
        while time.monotonic() < end:
            producer.send(partition, batch(numbers(written, written + 1)))
            written += 1
        producer.flush()
        assert cluster.leader(partition) is first
        assert read_values(cluster, partition) == numbers(0, written)


def test_a_changed_password_counts_from_the_next_authentication(kafka: EmbeddedBroker, folder: Path) -> None:
    admin = AdminClient(client_config(address(kafka, "mutual")))
    set_password(admin, "jobs", "first")
    (folder / "headrace.toml").write_text(sasl_profiles(folder, "jobs"))
    (folder / "password").write_text("first")
    with Cluster.of(address(kafka, "scram256")) as cluster:
        connection = cluster.any()
        set_password(admin, "jobs", "second")
        (folder / "password").write_text("second")
        threading.Event().wait(1.2 * SESSION_MS / 1000)  # the session ends
        assert cluster.topics([]) == {}
        assert cluster.any() is connection


def new_partition(cluster: Cluster) -> TopicPartition:
    topic = fresh_name("topic")
    create_topics(cluster, [NewTopic(name=topic, partitions=1)])
    return TopicPartition(topic, 0)


def set_password(admin: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([change])[user].result(100)
