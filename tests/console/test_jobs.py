"""Jobs in the console: their status, and requests to restart and reset them."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.cli.session import BrokerSession
from headrace.client.cluster import Cluster
from headrace.client.errors import attempts
from headrace.console.jobs import LOST
from headrace.streams import job_status
from headrace.streams.job_status import JobRequest, StatusReader, send_request
from headrace.testing import EmbeddedBroker
from tests.console.shop import JOB, RunningJob, State


@pytest.fixture
def job(kafka: EmbeddedBroker) -> Iterator[RunningJob]:
    running = RunningJob(kafka.bootstrap)
    with running.status:
        yield running


def status(client: httpx.Client, job: RunningJob, **wanted: Any) -> dict[str, Any]:
    """The status of the job as soon as it has these fields."""
    found: dict[str, Any] = {}
    for _ in attempts(20):
        job.turn()
        answer = client.get(f"/api/jobs/{JOB}")
        found = answer.json()
        if answer.status_code == 200 and wanted.items() <= found.items() and found["plan"]:
            return found
    raise AssertionError(found)


def test_a_running_job_has_figures_and_a_plan(client: httpx.Client, job: RunningJob) -> None:
    found = status(client, job, state="running")
    assert (found["rows"], found["state_rows"], found["phases_ms"]["addBatch"]) == (120, 4, 80)
    assert [each["name"] for each in found["plan"]["operators"]] == ["source-1", "window-1"]
    assert (found["inputs"], found["outputs"]) == (["orders"], [{"name": "revenue", "kind": "view"}])


def test_the_graph_connects_topics_jobs_groups_and_queues(client: httpx.Client, job: RunningJob) -> None:
    status(client, job, state="running")
    edges = {(edge["from"], edge["to"]) for edge in client.get("/api/graph").json()["edges"]}
    assert edges >= {
        ("topic:orders", f"job:{JOB}"),
        (f"job:{JOB}", "topic:revenue"),
        ("topic:orders", "group:billing"),
        ("topic:mails", "queue:mailer"),
        ("aggregate:shop.Cart", "topic:shop.Cart.events"),
    }


def test_a_job_is_restarted_and_its_status_names_the_request(client: httpx.Client, job: RunningJob) -> None:
    status(client, job, state="running")
    request = client.post(f"/api/jobs/{JOB}/restart", json={}).json()["request"]
    for _ in attempts(20):
        found = status(client, job, state="running")
        if found["request"] is not None:
            break
    assert found["request"]["id"] == request
    assert job.run.calls == ["start", "start"]


def test_a_reset_needs_the_name_of_the_job(client: httpx.Client, job: RunningJob) -> None:
    status(client, job, state="running")
    for confirm in ("", "revenue", "shop.other"):
        answer = client.post(f"/api/jobs/{JOB}/reset", json={"to": "start", "confirm": confirm})
        assert answer.status_code == 400
    answer = client.post(f"/api/jobs/{JOB}/reset", json={"to": "nowhere", "confirm": JOB})
    assert answer.status_code == 400


def test_a_job_is_reset_between_two_runs(client: httpx.Client, job: RunningJob) -> None:
    status(client, job, state="running")
    answer = client.post(f"/api/jobs/{JOB}/reset", json={"to": "17", "confirm": JOB})
    for _ in attempts(20):
        found = status(client, job, state="running")
        if found["request"] is not None:
            break
    assert found["request"]["id"] == answer.json()["request"]
    assert job.run.calls == ["start", ("reset", {"kind": "offset", "value": 17}), "start"]


def test_a_failed_job_says_why_and_can_be_restarted(client: httpx.Client, job: RunningJob) -> None:
    status(client, job, state="running")
    charge = job.supervisor.charges["revenue"]
    charge.state, charge.reason = State.FAILED, "the topic 'orders' does not exist"
    assert status(client, job, state="failed")["reason"] == "the topic 'orders' does not exist"
    client.post(f"/api/jobs/{JOB}/restart", json={})
    status(client, job, state="running", reason="")


def test_a_job_that_has_ended_is_stopped_and_takes_no_requests(
    client: httpx.Client, kafka: EmbeddedBroker
) -> None:
    running = RunningJob(kafka.bootstrap)
    with running.status:
        status(client, running, state="running")
    answers = (client.get(f"/api/jobs/{JOB}").json()["state"] for _ in attempts(20))
    assert "stopped" in answers
    answer = client.post(f"/api/jobs/{JOB}/restart", json={})
    assert (answer.status_code, "no process runs" in answer.json()["error"]) == (409, True)


def test_a_job_whose_process_was_killed_is_lost(
    client: httpx.Client, job: RunningJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    status(client, job, state="running")
    monkeypatch.setattr("headrace.console.jobs.STALE_S", -1)
    status(client, job, state=LOST)


def test_a_record_that_is_no_request_or_status_is_skipped(kafka: EmbeddedBroker, job: RunningJob) -> None:
    name = f"shop.{uuid.uuid4().hex}"
    with Cluster.of(kafka.bootstrap) as cluster:
        reader = StatusReader()
        send_request(cluster, JobRequest(job=name, action="restart"))
        producer = job_status.BatchProducer(cluster)
        valid = {"kind": "other", "state": "running", "updated_ms": 1}
        for value in (b"nonsense", b"[1]", json.dumps(valid).encode(), b'{"kind": "job"}'):
            batch = job_status.encode_batch([job_status.NewRecord(name.encode(), value, 1)])
            producer.send(job_status.STATUSES, batch)
        producer.flush()
        assert name not in reader.read(cluster)
    with pytest.raises(ValueError, match="unexpected keyword"):
        JobRequest.from_json(b'{"nothing": 1}')


def test_a_session_is_used_again(client: httpx.Client) -> None:
    """A console that opened connections for each document would exhaust the broker."""
    opened = []
    original = BrokerSession.__init__

    def note(self: BrokerSession, *arguments: Any, **more: Any) -> None:
        opened.append(self)
        original(self, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerSession, "__init__", note)
        for number in range(5):
            assert client.get("/api/topics", params={"n": number}).status_code == 200
    assert len(opened) <= 1
