"""What a running job publishes, and requests to restart and reset it, on a real Spark."""

from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

from headrace import App, Rows, View, tumbling
from headrace.client.cluster import Cluster
from headrace.streams.job_status import PLAN, JobRequest, StatusReader, send_request
from tests.cli.terminal import wait_until
from tests.streams.workshop import Workshop

pytestmark = pytest.mark.timeout(240)


def shop() -> App:
    app = App("shop")
    numbers = app.stream("numbers", "n int, at timestamp", event_time="at", watermark_delay="1 second")

    @app.job(into=View.of("counts", key=("window_start",)), late_topic="counts.late")
    def counts() -> Rows:
        """How many numbers each minute has."""
        return numbers.window(tumbling("1 minute")).agg(F.count("*").alias("n"))

    return app


def at(minute: int) -> dict[str, Any]:
    return {"n": 1, "at": f"2026-01-01T00:{minute:02}:00Z"}


def test_a_running_job_publishes_its_status_and_is_restarted_and_reset(workshop: Workshop) -> None:
    name, reader = "shop.counts", StatusReader()
    workshop.create("numbers")
    with Cluster.of(workshop.bootstrap) as cluster:

        def status() -> dict[str, Any]:
            return reader.read(cluster).get(name, {})

        def ask(**request: Any) -> None:
            wanted = JobRequest(job=name, **request)
            send_request(cluster, wanted)
            done = {"state": "running", "id": wanted.id}
            wait_until(
                lambda: {**status(), **(status()["request"] or {})}.items() >= done.items(),
                "it",
                deadline_s=100,
            )

        with workshop.running(shop()):
            wait_until(
                lambda: status().get("state") in ("running", "failed"), "the job to run", deadline_s=100
            )
            assert status()["reason"] == ""
            workshop.write("numbers", at(0), at(1), at(5), b"nonsense")
            wait_until(lambda: status().get("dead") == 1, "a batch", deadline_s=100)
            plan = reader.read(cluster)[f"{name}{PLAN}"]
            assert [each["kind"] for each in plan["operators"]] == ["source", "window"]
            assert (plan["inputs"], plan["outputs"]) == (["numbers"], [{"name": "counts", "kind": "view"}])
            assert status()["phases_ms"]["addBatch"] > 0
            ask(action="restart")
            assert status()["rows"] == 4
            ask(action="reset", kind="start")
            wait_until(lambda: status()["rows"] == 8, "the records to be read again", deadline_s=100)
            assert status()["restarts"] == 2
        assert status()["state"] == "stopped"
