"""A broker for all tests of a module, and views on it."""

from collections.abc import Callable, Iterator

import pytest

from headrace.testing import EmbeddedBroker, broker
from tests.feeds.shelf import Shelf


@pytest.fixture(scope="module")
def feed_broker() -> Iterator[EmbeddedBroker]:
    with broker(maintenance_interval_ms=50) as embedded:
        yield embedded


@pytest.fixture
def new_shelf(feed_broker: EmbeddedBroker) -> Callable[..., Shelf]:
    """A function that makes a view of its own."""
    return lambda **options: Shelf(feed_broker.bootstrap, **options)


@pytest.fixture
def shelf(new_shelf: Callable[..., Shelf]) -> Shelf:
    return new_shelf()
