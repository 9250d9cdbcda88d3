"""The examples in capture's docstrings are run."""

import doctest

from headrace.capture import placement, settings
from headrace.capture.postgres import lsn, snapshot, values


def test_the_examples_hold() -> None:
    for module in (placement, settings, lsn, snapshot, values):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert not results.failed
