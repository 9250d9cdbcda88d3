"""One PostgreSQL for all tests of capture, and a database of its own for each."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headrace.testing import EmbeddedBroker
from headrace.testing.postgres import PostgresServer
from tests.capture.database import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that serves the whole session."""
    # Not in pytest's folder: each pytest that starts shuts it for other users, as servers of root run.
    with TemporaryDirectory(prefix="headrace-") as folder, PostgresServer(Path(folder)) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer, headrace_broker: EmbeddedBroker) -> Iterator[Database]:
    """An empty database, and a broker that it is captured to."""
    name = f"d{uuid.uuid4().hex[:10]}"
    database = Database(postgres.create_database(name), name, headrace_broker.bootstrap)
    yield database
    database.close()
