"""A broker and a gateway for all tests of a module."""

from collections.abc import Callable, Iterator

import httpx
import pytest

from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.testing import EmbeddedBroker, broker
from tests.feeds.view_writer import ViewWriter
from tests.gateway.topics import TopicContent


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedBroker]:
    with broker(maintenance_interval_ms=50) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedBroker) -> Iterator[GatewayThread]:
    with GatewayThread(GatewayOptions(broker=kafka.bootstrap)) as running:
        yield running


@pytest.fixture(scope="module")
def client(gateway: GatewayThread) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as http:
        yield http


@pytest.fixture
def topic(kafka: EmbeddedBroker) -> TopicContent:
    """A new topic."""
    return TopicContent(kafka.bootstrap)


@pytest.fixture
def new_view(kafka: EmbeddedBroker) -> Callable[..., ViewWriter]:
    """A function that makes a view of its own."""
    return lambda **options: ViewWriter(kafka.bootstrap, **options)


@pytest.fixture
def view(new_view: Callable[..., ViewWriter]) -> ViewWriter:
    return new_view()
