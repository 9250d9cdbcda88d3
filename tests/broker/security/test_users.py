"""Users: created, described and deleted by clients, kept over restarts, and hidden from everybody."""

import asyncio
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from headrace.broker.init import main as init
from headrace.broker.security.store import SecurityStore
from headrace.broker.state_log import MemoryStateLog, UnknownRecord
from headrace.broker.topics import SECURITY
from headrace.testing import EmbeddedBroker
from tests.behavior.clients.pykafka import kafka as kafka_python
from tests.broker.security.brokers import (
    ADMIN,
    PASSWORD,
    connection_error,
    create_admin,
    sasl_config,
    secure_broker,
)
from tests.broker.wire_client import METADATA, WireClient, batch_of

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
ALTER, DESCRIBE = 51, 50


@pytest.fixture
def data(tmp_path: Path) -> Path:
    create_admin(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def kafka(data: Path) -> Iterator[EmbeddedBroker]:
    with secure_broker(data, "SASL_PLAINTEXT") as running:
        yield running


def create(
    admin: AdminClient, user: str, password: str, mechanism: Any = SHA_256, iterations: int = 4096
) -> None:
    info = ScramCredentialInfo(mechanism, iterations)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([change])[user].result(30)


def can_log_in(config: dict[str, Any]) -> bool:
    return connection_error(config) is None


def test_a_user_is_created_described_and_deleted(kafka: EmbeddedBroker) -> None:
    admin = AdminClient(sasl_config(kafka))
    create(admin, "alice", "tea")
    create(admin, "alice", "tea", SHA_512, 5000)
    described = admin.describe_user_scram_credentials().result(30)
    assert sorted(described) == [ADMIN, "alice"]
    infos = {(info.mechanism, info.iterations) for info in described["alice"].scram_credential_infos}
    assert infos == {(SHA_256, 4096), (SHA_512, 5000)}
    assert can_log_in(sasl_config(kafka, "alice", "tea"))
    assert can_log_in(sasl_config(kafka, "alice", "tea", sasl_mechanism="SCRAM-SHA-512"))
    admin.alter_user_scram_credentials([UserScramCredentialDeletion("alice", SHA_256)])["alice"].result(30)
    assert not can_log_in(sasl_config(kafka, "alice", "tea"))
    assert can_log_in(sasl_config(kafka, "alice", "tea", sasl_mechanism="SCRAM-SHA-512"))


def test_a_wrong_password_is_an_authentication_error(kafka: EmbeddedBroker) -> None:
    assert connection_error(sasl_config(kafka, password="wrong")) == "_AUTHENTICATION"


def test_users_survive_a_restart(data: Path) -> None:
    with secure_broker(data, "SASL_PLAINTEXT") as kafka:
        create(AdminClient(sasl_config(kafka)), "alice", "tea")
    with secure_broker(data, "SASL_PLAINTEXT") as kafka:
        assert can_log_in(sasl_config(kafka, "alice", "tea"))


def test_records_are_written_and_read_with_confluent_kafka(kafka: EmbeddedBroker) -> None:
    producer = Producer(sasl_config(kafka))
    producer.produce("orders", b"tea")
    assert producer.flush(30) == 0
    consumer = Consumer(sasl_config(kafka, group_id="shop", auto_offset_reset="earliest"))
    consumer.subscribe(["orders"])
    try:
        message = consumer.poll(30)
        assert message is not None
        assert message.value() == b"tea"
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_records_are_written_and_read_with_kafka_python(data: Path, mechanism: str) -> None:
    every = {"sasl_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")}
    with secure_broker(data, "SASL_PLAINTEXT", settings=every) as kafka:
        config = {
            "bootstrap_servers": kafka.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": ADMIN,
            "sasl_plain_password": PASSWORD,
        }
        producer = kafka_python.KafkaProducer(**config)
        producer.send("orders", b"tea").get(30)
        producer.close()
        consumer = kafka_python.KafkaConsumer(
            "orders", auto_offset_reset="earliest", consumer_timeout_ms=30_000, **config
        )
        assert next(consumer).value == b"tea"
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_records_are_written_with_aiokafka(data: Path, mechanism: str) -> None:
    async def write(bootstrap: str) -> int:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=ADMIN,
            sasl_plain_password=PASSWORD,
        )
        async with producer:
            return int((await producer.send_and_wait("orders", b"tea")).offset)

    with secure_broker(data, "SASL_PLAINTEXT", settings={"sasl_mechanisms": (mechanism,)}) as kafka:
        assert asyncio.run(write(kafka.bootstrap)) == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": ""}, ErrorCode.unacceptable_credential),
        ({"iterations": 4095}, ErrorCode.unacceptable_credential),
        ({"iterations": 16385}, ErrorCode.unacceptable_credential),
        ({"salt": b""}, ErrorCode.unacceptable_credential),
        ({"salted_password": b"short"}, ErrorCode.unacceptable_credential),
        ({"mechanism": 3}, ErrorCode.unsupported_sasl_mechanism),
        ({}, ErrorCode.none),
    ],
)
def test_a_credential_is_checked(tmp_path: Path, change: dict[str, Any], code: ErrorCode) -> None:
    upsertion = {
        "name": "alice",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": bytes(32),
    } | change
    with secure_broker(tmp_path / "data", "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        answer = client.ask(ALTER, 0, deletions=[], upsertions=[upsertion])
        assert answer.results[0].error_code is code
        described = client.ask(DESCRIBE, 0, users=None).results
        assert len(described) == (code is ErrorCode.none)


def test_a_credential_that_does_not_exist_or_is_named_twice_is_not_deleted(tmp_path: Path) -> None:
    deletion = {"name": "alice", "mechanism": 1}
    with secure_broker(tmp_path / "data", "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        missing = client.ask(ALTER, 0, deletions=[deletion], upsertions=[]).results[0]
        assert missing.error_code is ErrorCode.resource_not_found
        users = [{"name": "alice"}, {"name": "bob"}, {"name": "bob"}]
        codes = [result.error_code for result in client.ask(DESCRIBE, 0, users=users).results]
        assert codes == [ErrorCode.resource_not_found, ErrorCode.duplicate_resource]


def test_a_user_is_altered_once_in_a_request(tmp_path: Path) -> None:
    more = {"iterations": 4096, "salt": b"salt"}
    upsertions = [
        {"name": "alice", "mechanism": mechanism, "salted_password": bytes(32 * mechanism), **more}
        for mechanism in (1, 2)
    ]
    with secure_broker(tmp_path / "data", "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        (result,) = client.ask(ALTER, 0, deletions=[], upsertions=upsertions).results
        assert result.error_code is ErrorCode.duplicate_resource


def test_the_topic_of_users_cannot_be_seen_read_written_or_taken(data: Path) -> None:
    with secure_broker(data, "PLAINTEXT") as kafka, WireClient(kafka.bootstrap) as client:
        assert SECURITY not in {topic.name for topic in client.ask(METADATA, 1, topics=None).topics}
        named = client.ask(METADATA, 1, topics=[{"name": SECURITY}]).topics[0]
        assert named.error_code is ErrorCode.invalid_topic_exception
        for name in (SECURITY, SECURITY.replace("_", ".")):
            assert client.create_topic(name).error_code is ErrorCode.invalid_topic_exception
        unknown = ErrorCode.unknown_topic_or_partition
        assert client.produce(SECURITY, batch_of(b"x")).error_code is unknown
        fetched = client.fetch({(SECURITY, 0): 0}).responses[0].partitions[0]
        assert fetched.error_code is unknown
        deleted = client.ask(20, 5, topic_names=[SECURITY], timeout=1000).responses[0]
        assert deleted.error_code is unknown


def test_no_password_and_no_key_of_a_user_is_in_plain_text_on_the_disk(data: Path) -> None:
    stored = b"".join(file.read_bytes() for file in data.rglob("*") if file.is_file())
    assert PASSWORD.encode() not in stored
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_the_first_user_is_created_from_the_environment_or_a_file_and_not_from_nothing(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        "-m",
        "headrace.broker",
        "init",
        "--data",
        str(tmp_path / "data"),
        "--user",
        "admin",
    ]
    bare = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert bare.returncode == 1
    assert "there is no password for admin" in bare.stderr
    environment = {"HEADRACE_NEW_PASSWORD": PASSWORD, "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"created super user admin in {tmp_path / 'data'}\n"
    with secure_broker(tmp_path / "data", "SASL_PLAINTEXT") as kafka:
        assert can_log_in(sasl_config(kafka))


def test_a_running_broker_is_not_changed_behind_its_back(
    data: Path, kafka: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    password = data.parent / "password"
    assert init(["--data", str(data), "--user", "eve", "--password-file", str(password)]) == 1
    assert "eve" not in AdminClient(sasl_config(kafka)).describe_user_scram_credentials().result(30)
    assert "is in use" in capsys.readouterr().err


def test_the_password_of_the_first_user_can_be_reset(data: Path) -> None:
    (data.parent / "new").write_text("new-password")
    assert init(["--data", str(data), "--user", ADMIN, "--password-file", str(data.parent / "new")]) == 0
    with secure_broker(data, "SASL_PLAINTEXT") as kafka:
        assert not can_log_in(sasl_config(kafka))
        assert can_log_in(sasl_config(kafka, password="new-password"))


def test_a_record_of_a_newer_broker_stops_the_start() -> None:
    for key in (
        b'["delegation-token", "alice"]',
        b'["acl", "TOPIC", "x", "REGEX", "User:a", "*", "READ", "ALLOW"]',
    ):
        log = MemoryStateLog()
        log.append([(key, b"{}")])
        with pytest.raises(UnknownRecord, match="a newer broker wrote"):
            SecurityStore(log)


def test_no_user_can_have_the_name_of_clients_without_a_name(kafka: EmbeddedBroker) -> None:
    create(AdminClient(sasl_config(kafka)), "ANONYMOUS", "tea")
    assert not can_log_in(sasl_config(kafka, "ANONYMOUS", "tea"))


def test_a_client_that_authenticates_again_in_time_keeps_its_connection(data: Path) -> None:
    errors: list[Any] = []
    with secure_broker(data, "SASL_PLAINTEXT", settings={"session_lifetime_ms": 1500}) as kafka:
        producer = Producer(sasl_config(kafka) | {"error_cb": errors.append})
        end = time.monotonic() + 4
        while time.monotonic() < end:  # more than two sessions
            producer.produce("orders", b"tea")
            assert producer.flush(30) == 0
    assert errors == []
