"""The examples in capture's docstrings are run."""

import doctest

from headrace.capture import settings
from headrace.capture.postgres import replication, snapshot, values
from headrace.client import partitioner


def test_the_examples_hold() -> None:
    for module in (partitioner, settings, replication, snapshot, values):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert not results.failed
