"""The check of the scenario `observability` notices what it is there to notice."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.demo.mail_server import DemoMailServer
from headrace.demo.observability_demo import (
    ALERTS,
    AlertReceiver,
    ExpectedResults,
    ObservabilityCheck,
    ResultReader,
)
from headrace.demo.telemetry import FAILING
from headrace.sinks.webhook import sign

START = datetime(2026, 6, 1, 9, tzinfo=UTC)
NOWHERE = "127.0.0.1:9"
"""The client is made, and never used."""


class Scenario:
    """A run in which everything is as it should be."""

    def __init__(self) -> None:
        expected = ExpectedResults(START)
        self.results = ResultReader(NOWHERE)
        self.webhooks, self.mails = AlertReceiver(), DemoMailServer()
        self.results.rows["error_rate"] = {
            window: {"logs": logs, "errors": errors} for window, (logs, errors) in expected.rates.items()
        }
        self.results.rows["latency"] = {
            window: {"requests": each.requests, "p95": each.most_s}
            for window, each in expected.minutes.items()
        }
        for number, (kind, service) in enumerate(sorted(ALERTS)):
            event = {"type": kind, "data": {"service": service, "alert": "high"}}
            self.send(str(number), event)
            self.mails.keep(f"Message-ID: <{number}@a>\r\nSubject: {service}: high\r\n\r\n".encode())
        self.check = ObservabilityCheck(expected, self.results, self.webhooks, self.mails)

    def send(self, identity: str, event: dict[str, Any], secret: str | None = None) -> int:
        body, now_s = json.dumps(event).encode(), int(time.time())
        signature = sign(secret or self.webhooks.secret, identity, now_s, body)
        headers = {
            "webhook-id": identity,
            "webhook-timestamp": str(now_s),
            "webhook-signature": signature,
        }
        return self.webhooks.store(headers, body)

    def broken(self) -> list[str]:
        return [claim for claim, holds in self.check.claims().items() if not holds]


@pytest.fixture
def scenario() -> Iterator[Scenario]:
    scenario = Scenario()
    with scenario.webhooks, scenario.mails:
        yield scenario
    scenario.results.close()


def test_results_that_are_right_hold(scenario: Scenario) -> None:
    assert scenario.check.is_complete
    assert scenario.broken() == []


def test_a_result_that_is_missing_or_wrong_is_noticed(scenario: Scenario) -> None:
    rates, minutes = scenario.results.rows["error_rate"], scenario.results.rows["latency"]
    rates.popitem()
    minutes[START, FAILING[0]]["p95"] = 9.0
    assert not scenario.check.is_complete
    assert [claim.split()[-1] for claim in scenario.broken()] == ["right", "percentile"]


def test_an_alert_that_is_sent_twice_is_noticed(scenario: Scenario) -> None:
    identity, event = next(iter(scenario.webhooks.events.items()))
    assert scenario.send(identity, event) == 204
    assert [claim.split()[3] for claim in scenario.broken()] == ["signed"]


def test_an_alert_without_an_incident_is_noticed(scenario: Scenario) -> None:
    event = {"type": "alert.error_alerts", "data": {"service": "search", "alert": "high"}}
    assert scenario.send("another", event) == 204
    assert len(scenario.broken()) == 2


def test_an_alert_with_a_wrong_signature_is_refused(scenario: Scenario) -> None:
    assert scenario.send("forged", {}, secret="another secret") == 401
    assert scenario.broken() == []
