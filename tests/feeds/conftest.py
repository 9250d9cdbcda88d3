"""A broker for all tests of a module, and views on it."""

from collections.abc import Callable, Iterator

import pytest

from headrace.testing import EmbeddedBroker, broker
from tests.feeds.view_writer import ViewWriter


@pytest.fixture(scope="module")
def feed_broker() -> Iterator[EmbeddedBroker]:
    with broker(maintenance_interval_ms=50) as embedded:
        yield embedded


@pytest.fixture
def new_shelf(feed_broker: EmbeddedBroker) -> Callable[..., ViewWriter]:
    """A function that makes a view of its own."""
    return lambda **options: ViewWriter(feed_broker.bootstrap, **options)


@pytest.fixture
def shelf(new_shelf: Callable[..., ViewWriter]) -> ViewWriter:
    return new_shelf()
