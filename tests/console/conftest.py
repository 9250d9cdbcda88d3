"""A filled broker and a console for all tests."""

from collections.abc import Iterator

import httpx
import pytest

from headrace.testing import EmbeddedBroker, broker
from tests.console.shop import console, fill


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(maintenance_interval_ms=50) as embedded:
        fill(embedded.bootstrap)
        yield embedded


@pytest.fixture(scope="session")
def url(kafka: EmbeddedBroker) -> Iterator[str]:
    with console(kafka.bootstrap) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=60) as http:
        yield http
