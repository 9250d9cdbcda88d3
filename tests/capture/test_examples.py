"""The examples in capture's docstrings are run."""

import doctest

from headrace.capture import settings
from headrace.capture.postgres import replication, source, values


def test_the_examples_hold() -> None:
    for module in (settings, replication, source, values):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert not results.failed
