"""One PostgreSQL for all tests of capture, and a database of its own for each."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import EmbeddedBroker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that serves the whole session."""
    with PostgresServer(Path(tmp_path_factory.mktemp("postgres"))) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, headrace_broker: EmbeddedBroker) -> Iterator[Database]:
    """An empty database, and a broker that it is captured to."""
    name = f"d{uuid.uuid4().hex[:10]}"
    database = Database(postgres.create_database(name), name, headrace_broker.bootstrap)
    yield database
    database.close()
