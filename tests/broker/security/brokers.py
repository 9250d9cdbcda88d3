"""Brokers with users, for the tests of their security."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.broker.init import main as init
from headrace.broker.listeners import Listener, Protocol
from headrace.broker.security.settings import SecuritySettings
from headrace.testing import EmbeddedBroker, broker
from tests.broker.processes import wait_until


class Authority:
    """A certificate authority, with the files that brokers and clients need."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.ca_file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_file)

    def issue(self, name: str, *identities: str, **subject: str) -> Path:
        """A file with a certificate and its key, for a broker or a client."""
        file = self._folder / f"{name}.pem"
        issued = self._ca.issue_cert(*(identities or ("127.0.0.1", "localhost")), **subject)
        file.unlink(missing_ok=True)
        issued.private_key_and_cert_chain_pem.write_to_path(file)
        return file


ADMIN, PASSWORD = "admin", "admin-password"
REFUSALS = ("_AUTHENTICATION", "_SSL")


def create_admin(data: Path) -> None:
    """The first user, as an operator creates it."""
    file = data.parent / "password"
    file.write_text(f"{PASSWORD}\n")
    assert init(["--data", str(data), "--user", ADMIN, "--password-file", str(file)]) == 0


def listener(protocol: str, host: str = "127.0.0.1") -> Listener:
    """A listener on a free port."""
    return Listener(protocol=Protocol(protocol), host=host, port=0)


@contextmanager
def secure_broker(
    data: Path, *protocols: str, settings: Mapping[str, Any] | None = None, **more: Any
) -> Iterator[EmbeddedBroker]:
    """A broker on loopback with these listeners; `settings` are those of its security."""
    listeners = tuple(map(listener, protocols))
    security = SecuritySettings(**(settings or {}))
    with broker(data=data, listeners=listeners, security=security, **more) as running:
        yield running


def sasl_config(
    running: EmbeddedBroker, user: str = ADMIN, password: str = PASSWORD, **more: Any
) -> dict[str, Any]:
    """What confluent-kafka needs to connect."""
    return {
        "bootstrap.servers": running.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    } | {name.replace("_", "."): value for name, value in more.items()}


def connection_error(config: Mapping[str, Any]) -> str | None:
    """Why librdkafka cannot connect: `_AUTHENTICATION` or `_SSL`; None if it can."""
    errors: list[str] = []
    client = AdminClient({**config, "error_cb": lambda error: errors.append(error.name())})

    def is_decided() -> bool:
        try:
            client.list_topics(timeout=0.2)
        except KafkaException:
            client.poll(0)
            return any(name in REFUSALS for name in errors)
        errors.clear()
        return True

    wait_until(is_decided, "a connection or a refusal")
    return next((name for name in errors if name in REFUSALS), None)
