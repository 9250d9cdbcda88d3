"""A database behind TLS that asks for a password, and a Kafka that does: captured like any other."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace.capture.offsets import TOPIC as OFFSETS
from headrace.capture.source import DatabaseUnavailable
from headrace.testing import EmbeddedBroker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database, read_topic
from tests.tls_proxy import TlsProxy, secured_postgres

if TYPE_CHECKING:
    from tools.secured_kafka import SecuredKafka

SECRET = "a-very-secret-password"
USERS = "CREATE TABLE users (id bigint PRIMARY KEY, name text)"


@pytest.fixture(scope="module")
def proxy() -> Iterator[TlsProxy]:
    """A TLS proxy in front of a PostgreSQL whose replication user authenticates with SCRAM."""
    with secured_postgres("capturing", SECRET, "REPLICATION") as proxy:
        yield proxy


def url(proxy: TlsProxy, password: str = SECRET) -> str:
    options = f"sslmode=verify-full&sslrootcert={proxy.ca}"
    return f"postgresql://capturing:{password}@localhost:{proxy.port}/shop?{options}"


def test_snapshot_and_changes_come_by_tls(proxy: TlsProxy, headrace_broker: EmbeddedBroker) -> None:
    database = Database(url(proxy), "shop", headrace_broker.bootstrap)
    try:
        database.run(USERS, "INSERT INTO users VALUES (1, 'Anna')")
        assert database.capture("users") == 1
        database.run("UPDATE users SET name = 'Ann'")
        assert database.capture("users") == 1
        assert [op for _, op, *_ in database.events("shop.public.users")] == ["r", "u"]
        assert SECRET not in " ".join(database.messages)
        offsets = read_topic(headrace_broker.bootstrap, OFFSETS)
        assert offsets
        assert SECRET not in repr(offsets)
    finally:
        database.drop()
        database.run("DROP TABLE users")
        database.close()


def test_a_wrong_password_is_told_without_it(proxy: TlsProxy, headrace_broker: EmbeddedBroker) -> None:
    database = Database(url(proxy), "shop", headrace_broker.bootstrap)
    database.url = url(proxy, f"wrong-{SECRET}")
    try:
        with pytest.raises(DatabaseUnavailable, match="password authentication failed") as refusal:
            database.capture("users")
        assert SECRET not in str(refusal.value)
    finally:
        database.connection.close()


@pytest.mark.cluster
def test_changes_go_to_a_secured_kafka(
    postgres: PostgresServer, secured_kafka: "SecuredKafka", secured_bootstrap: str
) -> None:
    database = Database(postgres.create_database("secured"), "secured", secured_bootstrap)
    try:
        database.run(USERS, "INSERT INTO users VALUES (1, 'Anna')")
        assert database.capture("users", name="secured") == 1
        database.run("DELETE FROM users")
        assert database.capture("users", name="secured") == 2
        records = read_topic(secured_kafka.bootstrap, "secured.public.users")
        assert [value and value["op"] for _, value in records] == ["r", "d", None]
        database.drop("secured")
    finally:
        database.close()
