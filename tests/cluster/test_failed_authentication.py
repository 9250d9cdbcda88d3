"""What clients say after a failed authentication: the same with Headrace as with Apache Kafka."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.broker.security.brokers import create_admin, secure_broker
from tools.apache_kafka import fetch_jars
from tools.secured_kafka import SASL_PLAINTEXT, SecuredKafka

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

LOGIN = "org.apache.kafka.common.security.{module} required username='{user}' password='{password}';"
SCRAM = "scram.ScramLoginModule"


@pytest.fixture(scope="module", params=["headrace", "apache"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A listener with SCRAM and without TLS."""
    if request.param == "apache":
        kafka: SecuredKafka = request.getfixturevalue("secured_kafka")
        yield kafka.listeners[SASL_PLAINTEXT]
        return
    data = tmp_path_factory.mktemp("broker") / "data"
    create_admin(data)
    with secure_broker(data, "SASL_PLAINTEXT") as running:
        yield running.bootstrap


def fail(address: str, folder: Path, **options: str) -> str:
    """What the Java client prints that cannot connect with these options."""
    config = folder / "client.properties"
    settings = {name.replace("_", "."): value for name, value in options.items()}
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = shutil.which("java")
    assert java is not None
    arguments = ["--describe", "--entity-type", "users", "--command-config", str(config)]
    command = [java, "-cp", f"{fetch_jars()}/*", "kafka.admin.ConfigCommand", "--bootstrap-server", address]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


@pytest.mark.parametrize(("user", "mechanism"), [("admin", "SCRAM-SHA-256"), ("jobs", "SCRAM-SHA-512")])
def test_bad_credentials_are_an_authentication_error(
    address: str, tmp_path: Path, user: str, mechanism: str
) -> None:
    printed = fail(
        address,
        tmp_path,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_jaas_config=LOGIN.format(module=SCRAM, user=user, password="guessed"),
    )
    assert "SaslAuthenticationException" in printed
    assert f"due to invalid credentials with SASL mechanism {mechanism}" in printed
    assert "guessed" not in printed


def test_librdkafka_names_the_error_of_bad_credentials(address: str) -> None:
    messages: list[str] = []
    config = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "jobs",
        "sasl.password": "guessed",
        "error_cb": lambda fault: messages.append(f"{fault.name()} {fault.str()}"),
        "log_level": 0,
    }
    consumer = Consumer(config | {"group.id": "refused"})
    while not messages:
        consumer.poll(0.1)
    consumer.close()
    assert messages[0].startswith("_AUTHENTICATION ")
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in messages[0]
    assert "guessed" not in messages[0]
