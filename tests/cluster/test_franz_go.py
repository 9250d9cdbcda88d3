"""The client franz-go (Go) on a broker with users: the same as with Apache Kafka, also when it is refused."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.security.brokers import ADMIN, PASSWORD, create_admin, secure_broker
from tools.secured_kafka import SASL_PLAINTEXT, USER, SecuredKafka

pytestmark = pytest.mark.cluster

SOURCES = Path(__file__).parents[1] / "go"
BUILD_SECONDS = 900


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, built from tests/go; its packages come from Go's module proxy."""
    go = shutil.which("go")
    assert go is not None, "these tests need Go 1.26 or later in PATH: https://go.dev/dl"
    built: Path = tmp_path_factory.mktemp("go") / "client"
    done = subprocess.run(
        [go, "build", "-o", str(built), "."],
        cwd=SOURCES,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module", params=["headrace", "apache"])
def login(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The address of a listener with SASL and without TLS, a user who may do everything, and the password."""
    if request.param == "apache":
        kafka: SecuredKafka = request.getfixturevalue("secured_kafka")
        yield [kafka.listeners[SASL_PLAINTEXT], USER, (kafka.folder / "password").read_text().strip()]
        return
    data = tmp_path_factory.mktemp("broker") / "data"
    create_admin(data)
    with secure_broker(data, "SASL_PLAINTEXT") as running:
        yield [running.bootstrap, ADMIN, PASSWORD]


def run(
    program: Path, address: str, user: str, password: str, command: str, mechanism: str = "SCRAM-SHA-512"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, address, user, mechanism, command],
        env=os.environ | {"FRANZ_PASSWORD": password},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_fails_with_kafkas_error(program: Path, login: list[str], mechanism: str) -> None:
    address, user, _ = login
    done = run(program, address, user, "guessed", "connect", mechanism)
    assert done.returncode == 1
    assert done.stderr.startswith("SASL_AUTHENTICATION_FAILED\n")
    assert "guessed" not in done.stderr


def test_a_user_that_does_not_exist_fails_like_a_wrong_password(program: Path, login: list[str]) -> None:
    done = run(program, login[0], "nobody", "guessed", "connect")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "SASL_AUTHENTICATION_FAILED")


@pytest.mark.parametrize("login", ["headrace"], indirect=True)
def test_a_mechanism_that_the_listener_does_not_have_is_named(program: Path, login: list[str]) -> None:
    address, user, password = login
    done = run(program, address, user, password, "connect", "PLAIN")
    assert done.returncode == 1
    assert "UNSUPPORTED_SASL_MECHANISM" in done.stderr
    assert password not in done.stderr


@pytest.mark.parametrize("login", ["headrace"], indirect=True)
def test_users_acls_and_quotas_are_created_listed_and_deleted(program: Path, login: list[str]) -> None:
    address, user, password = login
    done = run(program, address, user, password, "administer")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert sorted(lines) == sorted(
        [
            "user alice SCRAM-SHA-256 8192",
            *["users listed"] * 2,
            "acl User:alice ALLOW DESCRIBE TOPIC PREFIXED franz-",
            "acl User:alice ALLOW READ TOPIC PREFIXED franz-",
            *["acls listed"] * 2,
            "quota {user=alice} [producer_byte_rate=1000000.000000]",
            *["quotas listed"] * 2,
        ]
    )
    assert [lines[-1], lines[-2]] == ["quotas listed"] * 2
