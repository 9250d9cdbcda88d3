"""Targets with TLS, users and passwords: what it takes to write to them, and what a wrong secret does."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pytest
import trustme
from aiosmtpd.smtp import AuthResult, LoginPassword
from redis import Redis

from headrace.folders import LocalFolder
from headrace.sinks.email import email
from headrace.sinks.postgres import postgres
from headrace.sinks.redis import redis
from headrace.sinks.sink import IncompatibleTarget, SinkContext, TargetUnavailable
from headrace.testing.postgres import free_port
from headrace.testing.redis import RedisServer
from tests.sinks.mailbox import Mailbox
from tests.sinks.writing import write
from tests.tls_proxy import TlsProxy, secured_postgres

ROWS = pa.table({"product": ["tea"], "revenue": [3.5]})
SECRET = "a-very-secret-password"


@pytest.fixture
def context(tmp_path: Path) -> SinkContext:
    return SinkContext(
        job="shop.revenue", generation=1, schema=ROWS.schema, folder=LocalFolder(tmp_path), state=tmp_path
    )


@pytest.fixture(scope="module")
def database() -> Iterator[TlsProxy]:
    """A PostgreSQL that asks for passwords by SCRAM, behind TLS."""
    with secured_postgres("jobs", SECRET) as proxy:
        yield proxy


def postgres_url(database: TlsProxy, ca: Path, password: str = SECRET) -> str:
    options = f"sslmode=verify-full&sslrootcert={ca}"
    return f"postgresql://jobs:{password}@localhost:{database.port}/shop?{options}"


def test_postgresql_with_tls_and_scram(database: TlsProxy, context: SinkContext) -> None:
    url = postgres_url(database, database.ca)
    assert write(postgres("revenue", key="product", url=url), context, 0, ROWS) == 0
    assert database.connections == 1
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT product, revenue FROM revenue").fetchall() == [("tea", 3.5)]


def test_postgresql_with_a_password_file(
    database: TlsProxy, context: SinkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pgpass"
    file.write_text(f"localhost:{database.port}:shop:jobs:{SECRET}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    monkeypatch.setenv("HEADRACE_POSTGRES", postgres_url(database, database.ca).replace(f":{SECRET}", ""))
    assert write(postgres("by_file", key="product"), context, 0, ROWS) == 0


@pytest.mark.parametrize("wrong", ["password", "ca"])
def test_postgresql_refuses_without_repeating_the_secret(
    database: TlsProxy, context: SinkContext, wrong: str
) -> None:
    url = postgres_url(database, database.other_ca if wrong == "ca" else database.ca)
    if wrong == "password":
        url = url.replace(SECRET, "wrong-" + SECRET)
    sink = postgres("revenue", key="product", url=url)
    with pytest.raises((TargetUnavailable, IncompatibleTarget)) as refusal:
        write(sink, context, 0, ROWS)
    assert ("password authentication failed" if wrong == "password" else "certificate") in str(refusal.value)
    assert SECRET not in str(refusal.value) + repr(sink)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProxy]:
    """A Redis with an ACL user, and none without a password, behind TLS."""
    folder = tmp_path_factory.mktemp("redis")
    with RedisServer(folder) as server:
        port = free_port()
        with Redis.from_url(server.url) as client:
            client.execute_command("ACL", "SETUSER", "jobs", "on", f">{SECRET}", "~*", "+@all", "-@admin")
            client.config_set("bind", "127.0.0.1")
            client.config_set("port", port)
            client.execute_command("ACL", "SETUSER", "default", "off")
        with TlsProxy("127.0.0.1", port, folder) as proxy:
            yield proxy


def redis_url(cache: TlsProxy, ca: Path, password: str = SECRET) -> str:
    return f"rediss://jobs:{password}@localhost:{cache.port}/0?ssl_ca_certs={ca}"


def test_redis_with_tls_and_an_acl_user(cache: TlsProxy, context: SinkContext) -> None:
    url = redis_url(cache, cache.ca)
    assert write(redis("revenue:{product}", url=url), context, 0, ROWS) == 0
    with Redis.from_url(url, decode_responses=True) as client:
        assert client.hgetall("revenue:tea") == {"product": "tea", "revenue": "3.5"}


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (lambda cache: redis_url(cache, cache.ca, f"wrong-{SECRET}"), "invalid username-password"),
        (lambda cache: redis_url(cache, cache.other_ca), "certificate verify failed"),
        (
            lambda cache: f"rediss://localhost:{cache.port}/0?ssl_ca_certs={cache.ca}",
            "already authenticated|Authentication required",
        ),
    ],
)
def test_redis_refuses_without_repeating_the_secret(
    cache: TlsProxy, context: SinkContext, url: Any, problem: str
) -> None:
    sink = redis("revenue:{product}", url=url(cache))
    with pytest.raises(TargetUnavailable, match=problem) as refusal:
        write(sink, context, 0, ROWS)
    assert SECRET not in str(refusal.value) + repr(sink)


@pytest.fixture
def post_office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mailbox]:
    """A mail server that takes mails only after STARTTLS and a login."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))

    def log_in(_: Any, __: Any, ___: Any, mechanism: str, data: LoginPassword) -> AuthResult:
        return AuthResult(success=data == LoginPassword(b"shop", SECRET.encode()), handled=False)

    with Mailbox(
        tls_context=context, require_starttls=True, auth_required=True, authenticator=log_in
    ) as mailbox:
        yield mailbox


def mail(mailbox: Mailbox, password: str = SECRET) -> Any:
    url = f"smtp://shop:{password}@localhost:{urlsplit(mailbox.url).port}"
    return email("ann@example.com", body="{product}", sender="shop@example.com", subject="Sold", smtp=url)


def test_smtp_with_starttls_and_a_login(post_office: Mailbox, context: SinkContext) -> None:
    write(mail(post_office), context, 0, ROWS)
    assert post_office.texts() == ["tea"]


def test_smtp_refuses_a_wrong_password_without_repeating_it(
    post_office: Mailbox, context: SinkContext
) -> None:
    sink = mail(post_office, f"wrong-{SECRET}")
    with pytest.raises(TargetUnavailable, match="535") as refusal:
        write(sink, context, 0, ROWS)
    assert SECRET not in str(refusal.value) + repr(sink)
    assert post_office.texts() == []


def test_smtp_sends_no_password_to_a_server_with_another_certificate(
    post_office: Mailbox, context: SinkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    with pytest.raises(TargetUnavailable, match="certificate verify failed"):
        write(mail(post_office), context, 0, ROWS)
    assert post_office.texts() == []
