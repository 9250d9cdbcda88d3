"""The pytest plugin: `headrace_broker`, a private broker for each test that uses the fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing.embedded import EmbeddedBroker


@pytest.fixture
def headrace_broker() -> Iterator[EmbeddedBroker]:
    """A private broker; `headrace_broker.bootstrap` is its address."""
    # Imported late: a project that does not use the fixture does not pay for it.
    from headrace.testing.embedded import broker

    with broker() as embedded:
        yield embedded
