"""Users of a secured broker see and do in the console what their ACLs allow."""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ResourceType,
)

from headrace.console.app import Console, ConsoleOptions
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.streams.job_status import REQUEST_TOPIC, STATUS_TOPIC, JobStatusThread
from headrace.testing import EmbeddedBroker
from tests.broker.security.brokers import Authority, sasl_config
from tests.gateway.test_authentication import (  # noqa: F401  fixtures
    ALICE,
    ROOT,
    admin,
    authority,
    folder,
    grant,
    options,
    provider,
    secured,
    set_password,
)


@pytest.fixture(scope="module")
def https(
    options: GatewayOptions,  # noqa: F811
    folder: Path,  # noqa: F811
    admin: AdminClient,  # noqa: F811
    authority: Authority,  # noqa: F811
) -> Iterator[httpx.Client]:
    context = ssl.create_default_context(cafile=str(authority.ca_file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_PROJECT", str(folder))
        with (
            GatewayThread(options, Console(ConsoleOptions()).routes()) as running,
            httpx.Client(base_url=running.url, verify=context, timeout=60) as client,
        ):
            yield client


def test_the_page_asks_for_a_password(https: httpx.Client) -> None:
    for path in ("/", "/console/main.js", "/api/topics", "/api/about"):
        answer = https.get(path)
        assert (answer.status_code, "Basic" in answer.headers["www-authenticate"]) == (401, True)
    assert https.get("/", auth=ALICE).status_code == 200
    assert https.get("/api/about", auth=ALICE).json()["user"] == "alice"


def test_users_see_the_topics_that_their_acls_allow(https: httpx.Client) -> None:
    for topic in ("orders", "salaries"):
        https.post("/api/topics", json={"topic": topic}, auth=ROOT)
        assert https.post(f"/api/topics/{topic}/messages", json={"value": "1"}, auth=ROOT).status_code == 200
    names = {each["topic"] for each in https.get("/api/topics", auth=ALICE).json()["topics"]}
    assert ("orders" in names, "salaries" in names) == (True, False)
    assert len(https.get("/api/topics/orders/messages", auth=ALICE).json()["messages"]) == 1
    assert https.get("/api/topics/salaries/messages", auth=ALICE).status_code in (403, 404)
    assert https.post("/api/topics/salaries/messages", json={"value": "1"}, auth=ALICE).status_code == 403


@pytest.mark.parametrize(
    "name",
    [
        "topics", "groups", "queues", "transactions", "brokers", "aggregates", "graph",
    ],
)  # fmt: skip
def test_a_page_shows_what_a_user_may_see(https: httpx.Client, name: str) -> None:
    assert https.get(f"/api/{name}", auth=ALICE).status_code == 200


@pytest.mark.parametrize("name", ["views", "captures"])
def test_a_page_without_the_right_to_its_topic_says_so(https: httpx.Client, name: str) -> None:
    answer = https.get(f"/api/{name}", auth=ALICE)
    assert (answer.status_code, "headrace." in answer.json()["error"]) == (403, True)


def test_documents_of_one_user_are_not_those_of_another(https: httpx.Client) -> None:
    topics = {user: https.get("/api/topics", auth=user).text for user in (ROOT, ALICE)}
    assert "__consumer_offsets" in topics[ROOT]
    assert "__consumer_offsets" not in topics[ALICE]


def test_a_job_whose_user_has_no_right_to_the_topics_of_jobs_runs_without_a_status(
    secured: EmbeddedBroker,  # noqa: F811
    admin: AdminClient,  # noqa: F811
    authority: Authority,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = {"username": "walt", "password": "the secret of walt", "mechanism": "SCRAM-SHA-256"}
    set_password(admin, profile["username"], profile["password"])
    lines = [
        "[security.walt]",
        'security.protocol = "SASL_SSL"',
        f'ssl.ca.location = "{authority.ca_file}"',
        *(f'sasl.{name} = "{value}"' for name, value in profile.items()),
    ]
    (tmp_path / "headrace.toml").write_text("\n".join(lines))
    monkeypatch.setenv("HEADRACE_PROJECT", str(tmp_path))
    caplog.set_level("INFO")
    with JobStatusThread(f"walt://{secured.bootstrap}") as thread:
        thread.statuses = {"shop.revenue": {"state": "running"}}
    said = [record for record in caplog.records if record.name == "headrace.streams.job_status"]
    assert {record.levelname for record in said} == {"INFO"}
    assert "is not published" in said[0].message
    assert "headrace.job" in said[0].message
    assert thread.requests() == []


def test_requests_to_jobs_need_the_right_to_write_their_topic(
    https: httpx.Client,
    admin: AdminClient,  # noqa: F811
    secured: EmbeddedBroker,  # noqa: F811
    authority: Authority,  # noqa: F811
) -> None:
    secrets = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(authority.ca_file), "log_level": 0}
    producer = Producer(sasl_config(secured) | secrets)
    status = {"kind": "job", "job": "revenue", "state": "running", "updated_ms": time.time_ns() // 1_000_000}
    producer.produce(STATUS_TOPIC, json.dumps(status), "shop.revenue")
    assert producer.flush(30) == 0
    grant(admin, ResourceType.TOPIC, STATUS_TOPIC, AclOperation.READ)
    assert https.post("/api/jobs/shop.revenue/restart", json={}, auth=ROOT).status_code == 200
    assert [job["state"] for job in https.get("/api/jobs", auth=ALICE).json()["jobs"]] == ["running"]
    for action, body in (("restart", {}), ("reset", {"to": "start", "confirm": "shop.revenue"})):
        answer = https.post(f"/api/jobs/shop.revenue/{action}", json=body, auth=ALICE)
        assert answer.status_code == 403, answer.text
    forged = {"value": '{"job": "shop.revenue", "action": "restart"}'}
    assert https.post(f"/api/topics/{REQUEST_TOPIC}/messages", json=forged, auth=ROOT).status_code == 403
