"""A broker for all tests of a module, and stores on it."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from headrace.events import EventStore
from headrace.testing import EmbeddedBroker, broker


@pytest.fixture(scope="module")
def event_broker() -> Iterator[EmbeddedBroker]:
    with broker() as embedded:
        yield embedded


@pytest.fixture
def new_store(event_broker: EmbeddedBroker) -> Iterator[Callable[..., EventStore]]:
    """A function that opens a store, of a name of its own unless one is given; all are closed in the end."""
    opened: list[EventStore] = []

    def make(name: str | None = None, **options: object) -> EventStore:
        chosen = name or f"s{uuid.uuid4().hex[:10]}"
        store = EventStore(chosen, broker=event_broker.bootstrap, **{"partitions": 2, **options})
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(new_store: Callable[..., EventStore]) -> EventStore:
    return new_store()
