"""Users and ACLs of a secured broker, over HTTP with TLS."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.errors import Misuse
from headrace.gateway import identity
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.testing import EmbeddedBroker
from tests.broker.security.brokers import ADMIN, PASSWORD, Authority, create_admin, sasl_config, secure_broker
from tests.broker.security.test_oauth import Provider, settings_of

PROFILE = """
[security.users]
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-256"
ssl.ca.location = "ca.pem"
"""
ALICE = ("alice", "the secret of alice")
ROOT = (ADMIN, PASSWORD)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "headrace.toml").write_text(PROFILE)
    return folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def provider(folder: Path) -> Provider:
    return Provider(folder / "jwks.json")


@pytest.fixture(scope="module")
def secured(
    authority: Authority, provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    data = tmp_path_factory.mktemp("broker") / "data"
    create_admin(data)
    security = {
        "certificate": authority.issue("broker"),
        "sasl_mechanisms": ("SCRAM-SHA-256", "OAUTHBEARER"),
        "oauth": settings_of(provider),
    }
    with secure_broker(data, "SASL_SSL", settings=security) as running:
        yield running


@pytest.fixture(scope="module")
def admin(secured: EmbeddedBroker, authority: Authority) -> AdminClient:
    config = sasl_config(secured) | {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca_file),
    }
    admin = AdminClient(config)
    set_password(admin, *ALICE)
    for topic in ("orders", "headrace.idempotency.alice"):
        grant(admin, ResourceType.TOPIC, topic, AclOperation.ALL)
    grant(admin, ResourceType.TRANSACTIONAL_ID, "headrace.gateway.", AclOperation.ALL)
    return admin


def set_password(admin: AdminClient, user: str, password: str) -> None:
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(user, info, password.encode())
    admin.alter_user_scram_credentials([change])[user].result(30)


def grant(admin: AdminClient, kind: Any, name: str, operation: Any) -> None:
    pattern = ResourcePatternType.PREFIXED if name.endswith(".") else ResourcePatternType.LITERAL
    binding = AclBinding(kind, name, pattern, "User:alice", "*", operation, AclPermissionType.ALLOW)
    admin.create_acls([binding])[binding].result(30)


@pytest.fixture(scope="module")
def options(secured: EmbeddedBroker, authority: Authority, admin: AdminClient) -> GatewayOptions:
    """The settings of a gateway whose broker has the user alice."""
    return GatewayOptions(
        broker=f"users://{secured.bootstrap}",
        authentication=True,
        certificate=authority.issue("gateway"),
        name="secured",
    )


@pytest.fixture(scope="module")
def site(options: GatewayOptions, folder: Path, admin: AdminClient) -> Iterator[GatewayThread]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_PROJECT", str(folder))
        with GatewayThread(options) as running:
            yield running


@pytest.fixture
def https(site: GatewayThread, authority: Authority) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    with httpx.Client(base_url=site.url, verify=context, timeout=60) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_users_write_what_their_acls_allow(https: httpx.Client) -> None:
    assert https.post("/topics/orders", json=1, auth=ALICE).status_code == 200
    refused = https.post("/topics/invoices", json=1, auth=ALICE)
    assert refused.status_code == 403
    assert "not allowed" in refused.json()["error"]
    assert https.post("/topics/invoices", json=1, auth=ROOT).status_code == 200


def test_users_read_what_their_acls_allow(https: httpx.Client) -> None:
    https.post("/topics/orders", json=1, auth=ALICE)
    https.post("/topics/invoices", json=1, auth=ROOT)
    with https.stream("GET", "/topics/orders/records?from=earliest", auth=ALICE) as answer:
        assert next(line for line in answer.iter_lines() if line.startswith("data"))
    assert https.get("/topics/invoices/records", auth=ALICE).status_code in (403, 404)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic YWxpY2U=",
        "Basic YWxpY2U6d3Jvbmc=",
        "Basic bm9ib2R5OnNlY3JldA==",
        "Digest x",
        "Bearer x",
        "Bearer a.b.c",
    ],
)
@pytest.mark.parametrize("path", ["/topics/orders", "/v1/logs"])
def test_without_valid_credentials_nothing_is_done(
    https: httpx.Client, authorization: str | None, path: str
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = https.post(path, json=1, headers=headers)
    assert answer.status_code == 401
    assert "Basic" in answer.headers["WWW-Authenticate"]


@pytest.mark.parametrize("path", ["/views", "/views/x", "/views/x/y", "/changes/x", "/topics/orders/records"])
def test_reading_needs_credentials_too(https: httpx.Client, path: str) -> None:
    assert https.get(path).status_code == 401


def test_a_token_is_passed_to_the_broker(https: httpx.Client, provider: Provider) -> None:
    assert https.post("/topics/orders", json=1, headers=bearer(provider.token())).status_code == 200
    stranger = bearer(provider.token(sub="mallory"))
    assert https.post("/topics/orders", json=1, headers=stranger).status_code == 403
    for wrong in ({"aud": "other"}, {"exp": 1}, {"iss": "https://evil.example"}):
        assert (
            https.post("/topics/orders", json=1, headers=bearer(provider.token(**wrong))).status_code == 401
        )


def test_idempotency_keys_belong_to_their_user(https: httpx.Client) -> None:
    keyed = {"Idempotency-Key": "k"}
    first = https.post("/topics/orders", json=1, auth=ALICE, headers=keyed)
    assert first.status_code == 200, first.text
    assert https.post("/topics/orders", json=1, auth=ALICE, headers=keyed).json() == first.json()
    other = https.post("/topics/orders", json=1, auth=ROOT, headers=keyed)
    assert (other.status_code, other.json() != first.json()) == (200, True)


def test_a_changed_password_counts_when_it_is_checked_again(
    https: httpx.Client, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_password(admin, "carol", "first")
    answer = https.post("/topics/orders", json=1, auth=("carol", "first"))
    assert answer.status_code == 403
    set_password(admin, "carol", "second")
    monkeypatch.setattr(identity, "CHECK_AGAIN_S", 0.0)
    assert https.post("/topics/orders", json=1, auth=("carol", "first")).status_code == 401
    assert https.post("/topics/orders", json=1, auth=("carol", "second")).status_code == 403


def test_what_describes_the_gateway_needs_no_credentials(https: httpx.Client) -> None:
    assert https.get("/openapi.json").json()["security"]
    assert https.get("/docs").status_code == 200


def test_connections_without_a_certificate_are_refused_if_one_is_required(
    options: GatewayOptions, authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setenv("HEADRACE_PROJECT", str(folder))
    with GatewayThread(replace(options, client_ca=authority.ca_file, name="mutual")) as running:
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        with (
            httpx.Client(base_url=running.url, verify=context) as client,
            pytest.raises(httpx.TransportError),
        ):
            client.get("/docs")
        context.load_cert_chain(authority.issue("device", "device@headrace.test"))
        with httpx.Client(base_url=running.url, verify=context) as client:
            assert client.post("/topics/orders", json=1, auth=ALICE).status_code == 200


@pytest.mark.parametrize(
    "more", [{}, {"authentication": True}, {"certificate": Path("x.pem")}], ids=["none", "no TLS", "no users"]
)
def test_another_address_needs_tls_and_authentication(more: Any) -> None:
    with pytest.raises(Misuse, match="--authentication, --tls-certificate"):
        GatewayOptions(broker="127.0.0.1:9092", host="0.0.0.0", **more)
