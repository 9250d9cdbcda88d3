"""The OpenAPI document, the page that shows it, and requests of all kinds that follow it or do not."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.gateway.openapi import openapi_document
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.testing import broker
from tests.feeds.view_writer import ViewWriter

# Hypothesis compares the state of `random` around each strategy; the gateway and the broker run in threads of
# this process, and a thread that uses `random` meanwhile looks like a strategy that does.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = r"/(changes|topics/\{topic\}/records)"
"""They do not end; tests of streams have their own requests."""


@schemathesis.serializer("application/x-ndjson", "application/x-protobuf")
def as_bytes(_: Any, value: Any) -> bytes:
    content = getattr(value, "data", value)
    return content if isinstance(content, bytes) else str(content).encode(errors="replace")


@pytest.fixture(scope="module")
def described() -> Iterator[GatewayThread]:
    """A gateway of its own, so that the topics that the requests create are in nobody's way."""
    with broker(max_partitions=100) as kafka:
        ViewWriter(kafka.bootstrap, name="revenue").write(("a", 1), ("b", 2))
        with GatewayThread(GatewayOptions(broker=kafka.bootstrap, produce_timeout_s=3)) as running:
            yield running


document = schemathesis.openapi.from_dict(openapi_document()).exclude(path_regex=STREAMS)


def check(case: Any, url: str) -> None:
    response = case.call(base_url=url, timeout=30)
    case.validate_response(response, checks=CHECKS, excluded_checks=[not_a_server_error])


STEADY: Any = {
    "deadline": None,
    "phases": (Phase.explicit, Phase.generate),
    "suppress_health_check": list(HealthCheck),
}


@document.parametrize()
@settings(max_examples=15, **STEADY)
def test_requests_of_all_kinds_are_answered_as_documented(case: Any, described: GatewayThread) -> None:
    check(case, described.url)


@pytest.mark.soak
@document.parametrize()
@settings(max_examples=500, **STEADY)
def test_many_requests_are_answered_as_documented(case: Any, described: GatewayThread) -> None:
    check(case, described.url)


def test_the_page_describes_every_path_and_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert page.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert not re.search(r"(src|href)=.?(https?:)?//", page.text)
    for path in client.get("/openapi.json").json()["paths"]:
        assert path in page.text


def test_every_path_of_the_document_exists(client: httpx.Client) -> None:
    for path, operations in openapi_document()["paths"].items():
        for method in operations:
            filled = re.sub(r"\{\w+\}", "nothing", path)
            answer = client.request(method, filled)
            assert "unknown path" not in answer.text
